package docker

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A workspace's own user attacks its agent, its IDE, the volumes, and another workspace. Both
// workspaces go on, and neither learns anything of the other.
func TestHostileWorkspace(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	up, other := running(t, r), running(t, r)
	c := inspectOf(t, r, up)
	putProbe(t, r, c.ID, "")
	ide := ideOf(t, c)
	ideInside := insidePID(t, ide)

	const refused, readOnly, ignored = "EACCES EPERM", "EROFS", "done"
	want := map[string]string{
		"write the executable":         readOnly,
		"write it by /proc/1/root":     readOnly,
		"write it by /proc/1/exe":      "ETXTBSY EROFS EACCES EPERM",
		"remove the executable":        readOnly,
		"rename the executable":        readOnly,
		"make a file on its volume":    readOnly,
		"make a link on its volume":    readOnly,
		"change the executable's mode": readOnly, "change the executable's owner": readOnly,
		"mount over the volume": refused, "make the volume writable": refused, "unmount the volume": refused,
		"enter the namespaces of process 1": refused, "make a namespace": refused,
		"read the disks": "ENOENT", "Docker's socket": "ENOENT",
		// Processes of the same user may trace each other, unless the kernel restricts it.
		"trace process 1": "done EPERM", "trace the IDE": "done EPERM", "the memory of process 1": "done EACCES EPERM",
		// The kernel keeps both from the first process of a container.
		"SIGKILL to process 1": ignored, "SIGSTOP to process 1": ignored,
		"listen on the agent's port of all addresses": "EADDRINUSE", "listen on the agent's port of loopback": "EADDRINUSE",
		"listen on the agent's port of all IPv4 addresses": "EADDRINUSE", "listen on the agent's port of its own address": "EADDRINUSE",
	}
	got := run[map[string]string](t, up, "/probe", "attack", strconv.Itoa(ideInside))
	for what, came := range got {
		if !slices.Contains(strings.Fields(want[what]), came) {
			t.Errorf("%s: %s, want %s", what, came, want[what])
		}
		t.Logf("%s: %s", what, came)
	}
	if len(got) != len(want) {
		t.Errorf("%d attacks were tried, of %d", len(got), len(want))
	}
	hello(t, up)

	// Its own secret can be read, and opens no other workspace; the other's cannot.
	if environs := run[string](t, up, "/probe", "environs"); !strings.Contains(environs, up.Secret) || strings.Contains(environs, other.Secret) {
		t.Errorf("the environments have its own secret: %v; and that of another workspace: %v", strings.Contains(environs, up.Secret), strings.Contains(environs, other.Secret))
	}
	for _, address := range []string{other.Agent, other.Addr} {
		for _, secret := range []string{up.Secret, other.Secret} {
			if got := run[string](t, up, "/probe", "connect", address, secret); got != "timeout" {
				t.Errorf("connecting to another workspace: %q", got)
			}
		}
	}
	if got := run[string](t, up, "/probe", "connect", "127.0.0.1:"+strconv.Itoa(runtime.AgentPort), up.Secret); got != "HTTP/1.1 200 done" {
		t.Errorf("connecting to its own agent: %q", got)
	}
	// Where the network isolation does not stand between, the secret does.
	if _, err := (&agent.Client{Addr: other.Agent, Secret: up.Secret}).Hello(t.Context()); !errors.Is(err, agent.ErrRefused) {
		t.Errorf("another workspace's agent, asked with this one's secret: %v", err)
	}

	// Whatever is in the place of the socket of commands that hold it awake, the agent reports on.
	for _, kind := range []string{"link", "endless", "file", "none"} {
		if got := run[string](t, up, "/probe", "forge", kind); got != "done" {
			t.Fatalf("forge %s: %s", kind, got)
		}
		if u, err := (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Usage(t.Context()); err != nil || len(u.Holders) != 0 || u.Memory <= 0 {
			t.Errorf("the use with %s as the socket: %+v, %v", kind, u, err)
		}
	}

	// An IDE that is stopped does not answer, and the server notices; the agent answers, so the way
	// out is to continue or to kill it, or to stop the workspace.
	if got := run[string](t, up, "/probe", "send", strconv.Itoa(ideInside), "STOP"); got != "done" {
		t.Fatal(got)
	}
	harness.Eventually(t, "the IDE is stopped", func() bool { return childrenOf(t, c.State.Pid)[ide] == "T" })
	hello(t, up)
	if got := run[string](t, up, "/probe", "send", strconv.Itoa(ideInside), "CONT"); got != "done" {
		t.Fatal(got)
	}
	awaitHealthy(t, r, runtime.Container{Addr: up.Addr})

	// A signal that the agent takes stops the workspace, as a stop of the server would.
	// The agent ends the program that sent it, perhaps before that has printed anything.
	sender, err := (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Exec(t.Context(), agent.Command{Args: []string{"/probe", "send", "1", "TERM"}})
	check(t, err)
	defer sender.Close()
	harness.Eventually(t, "the container ends", func() bool { return !inspectOf(t, r, up).State.Running })
	list, err := r.Containers(t.Context())
	check(t, err)
	for _, seen := range list {
		if seen.ID == up.ContainerID && seen.State == runtime.ContainerRunning {
			t.Errorf("the server sees %+v", seen)
		}
	}
	hello(t, other)
	if err := r.RemoveContainer(t.Context(), up.ContainerID, time.Second); err != nil {
		t.Error(err)
	}
	stopFrozen(t, r, other)
}

// stopFrozen stops a workspace whose user has stopped the agent by a debugger, where the kernel
// allows that: the server gets no answer, and Docker ends the container.
func stopFrozen(t *testing.T, r *Runtime, up runtime.Upstream) {
	t.Helper()
	putProbe(t, r, up.ContainerID, "")
	p, err := (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Exec(t.Context(), agent.Command{Args: []string{"/probe", "freeze"}})
	check(t, err)
	defer p.Close()
	var refused atomic.Bool
	stdout, printed := io.Pipe()
	defer stdout.Close()
	go func() { _, err := p.Run(printed, io.Discard); printed.CloseWithError(err) }()
	go func() {
		said, _ := bufio.NewReader(stdout).ReadString('\n') // nothing, if the agent is stopped
		refused.Store(strings.Contains(said, "EPERM"))
	}()
	client := &agent.Client{Addr: up.Agent, Secret: up.Secret, AnswerTimeout: 500 * time.Millisecond}
	harness.Eventually(t, "the agent does not answer, or may not be traced", func() bool {
		_, err := client.Hello(t.Context())
		return err != nil || refused.Load()
	})
	t.Logf("tracing was refused: %v", refused.Load())
	if err := r.RemoveContainer(t.Context(), up.ContainerID, time.Second); err != nil {
		t.Error(err)
	}
}

// insidePID is the process ID in its container of a process of this host.
func insidePID(t *testing.T, pid int) int {
	t.Helper()
	for line := range strings.Lines(strings.Join(procFile(t, pid, "status"), "")) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			n, err := strconv.Atoi(f[len(f)-1])
			check(t, err)
			return n
		}
	}
	t.Fatal("the process has no ID in a container")
	return 0
}

// A workspace whose home is full takes commands, reports that, and says so to those who write.
func TestFullHome(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	disk := t.TempDir()
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=4m,mode=755"); err != nil {
		t.Fatalf("mount a small disk, which needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := newRuntime(t, func(c *Config) { c.DataDir = disk })
	spec := newHome()
	spec.Storage = workspace.StorageLocalDir
	up := startSpec(t, r, spec)
	putProbe(t, r, up.ContainerID, "")
	if got := run[string](t, up, "/probe", "fill", runtime.HomeDir); got != "ENOSPC" {
		t.Fatalf("filling the home: %s", got)
	}
	if got := run[string](t, up, "/probe", "write", runtime.HomeDir+"/more"); !strings.Contains(got, "no space left on device") {
		t.Errorf("a command that writes to the home says: %s", got)
	}
	client := &agent.Client{Addr: up.Agent, Secret: up.Secret}
	if u, err := client.Usage(t.Context()); err != nil || u.Disk < u.DiskSize || u.DiskSize != 4<<20 {
		t.Errorf("the use: %+v, %v", u, err)
	}
	conn, err := client.Files(t.Context())
	check(t, err)
	defer conn.Close()
	files, err := sftp.NewClientPipe(conn, conn)
	check(t, err)
	f, err := files.Create("sent")
	if err == nil {
		_, err = f.Write(make([]byte, 64<<10))
	}
	if err == nil {
		t.Error("a file was sent to a full home")
	}
	t.Logf("sending a file: %v", err)
	if err := r.RemoveContainer(t.Context(), up.ContainerID, time.Second); err != nil {
		t.Error(err)
	}
}

// A workspace that has taken all its processes is stopped as any other, and so is one whose IDE
// does not take signals. Another workspace is not affected.
func TestForkBomb(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.Pids = 96 })
	up, other := running(t, r), running(t, r)
	c := inspectOf(t, r, up)
	putProbe(t, r, c.ID, "")
	p, err := (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Exec(t.Context(), agent.Command{Args: []string{"/probe", "breed", "10m"}})
	check(t, err)
	defer p.Close()
	client := &agent.Client{Addr: up.Agent, Secret: up.Secret}
	var refusal error
	harness.Eventually(t, "no process can be started, and the agent says so", func() bool {
		more, err := client.Exec(t.Context(), agent.Command{Args: []string{"/probe", "id"}})
		if err == nil {
			more.Close()
			return false
		}
		refusal = err
		return true
	})
	if state := inspectOf(t, r, up).State; !state.Running {
		t.Errorf("the container has ended with code %d", state.ExitCode)
	}
	if !errors.Is(refusal, agent.ErrRefused) || !strings.Contains(refusal.Error(), "limit of processes") {
		t.Errorf("a command among too many processes: %v", refusal)
	}
	t.Logf("a command among too many processes: %v", refusal)
	if u, err := client.Usage(t.Context()); err != nil || u.Processes < 64 {
		t.Errorf("the use: %+v, %v", u, err)
	}
	hello(t, other)
	check(t, r.RemoveContainer(t.Context(), up.ContainerID, time.Second))
	hello(t, other)
}
