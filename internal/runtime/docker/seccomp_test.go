package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/testing/harness"
)

// probes has the directory of the probes that were built.
var probes struct {
	mu  sync.Mutex
	dir string
}

// probeBinary builds testdata/probe, static, once for each architecture: "" is that
// of this machine.
func probeBinary(t *testing.T, arch string) string {
	t.Helper()
	probes.mu.Lock()
	defer probes.mu.Unlock()
	if probes.dir == "" {
		dir, err := os.MkdirTemp("", "codehub-probe-")
		check(t, err)
		probes.dir = dir
	}
	bin := filepath.Join(probes.dir, "probe-"+arch)
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	cmd := exec.Command("go", "build", "-o", bin, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if arch != "" {
		cmd.Env = append(cmd.Env, "GOARCH="+arch)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v: %s", err, out)
	}
	return bin
}

// putProbe copies the probe into a container.
func putProbe(t *testing.T, r *Runtime, container, arch string) {
	t.Helper()
	raw, err := os.ReadFile(probeBinary(t, arch))
	check(t, err)
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	check(t, tw.WriteHeader(&tar.Header{Name: "probe" + arch, Mode: 0o755, Size: int64(len(raw))}))
	must(t)(tw.Write(raw))
	check(t, tw.Close())
	must(t)(r.engine.API.CopyToContainer(t.Context(), container, client.CopyToContainerOptions{DestinationPath: "/", Content: &b}))
}

// inside runs a program in a running container, as the container's user and with
// its profile, and returns what it printed.
func inside(ctx context.Context, r *Runtime, container string, cmd ...string) (string, error) {
	var out strings.Builder
	err := insideLines(ctx, r, container, func(line string) { out.WriteString(line + "\n") }, cmd...)
	return out.String(), err
}

// insideLines is inside, and calls line for each line while the program runs.
func insideLines(ctx context.Context, r *Runtime, container string, line func(string), cmd ...string) error {
	made, err := r.engine.API.ExecCreate(ctx, container, client.ExecCreateOptions{Cmd: cmd, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return err
	}
	stream, err := r.engine.API.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, stream.Close)
	defer stop()
	reader, writer := io.Pipe()
	var errs bytes.Buffer
	go func() {
		_, err := stdcopy.StdCopy(writer, &errs, stream.Reader)
		writer.CloseWithError(err)
	}()
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		line(lines.Text())
	}
	if err := lines.Err(); err != nil {
		return err
	}
	end, err := r.engine.API.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return err
	}
	if end.ExitCode != 0 {
		return fmt.Errorf("%v ended with code %d: %s", cmd, end.ExitCode, errs.String())
	}
	return nil
}

// probeInside runs the probe in a running container and parses what it prints.
func probeInside[T any](t *testing.T, r *Runtime, container string, args ...string) T {
	t.Helper()
	out, err := inside(t.Context(), r, container, args...)
	check(t, err)
	return parsed[T](t, out)
}

func parsed[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("the probe printed %q: %v", text, err)
	}
	return v
}

// callsOf is what the probe's system calls return under the profile. Without a
// profile most of those that are refused would return something else.
func callsOf(change map[string]string) map[string]string {
	// ioctl gets no descriptor, so an allowed request reaches the kernel, and fails there.
	want := map[string]string{"clone3": "ENOSYS", "FICLONE": "EBADF", "FIDEDUPERANGE": "EBADF", "FS_IOC_GETFLAGS": "EBADF", "FS_IOC_FSGETXATTR": "EBADF"}
	for _, name := range []string{
		"socket vsock", "socket vsock, upper half set", "socket alg", "socket sctp", "socket bluetooth", "socketpair tipc",
		"io_uring", "keyctl", "add_key", "userfaultfd", "bpf", "perf_event_open", "unshare user", "clone user",
		"executable data", "get_mempolicy", "quotactl", "chroot", "modify_ldt", "make subvolume", "make subvolume, as v2",
		"FS_IOC_SETFLAGS", "FS_IOC_FSSETXATTR", "file_setattr",
	} {
		want[name] = "EPERM"
	}
	for _, name := range []string{
		"socket tcp", "socket udp6", "socket ping", "socket unix", "socket netlink", "socketpair", "memfd_create", "inotify",
		"pidfd_open", "fixed addresses", "ptrace", "clone", "terminal", "FIONREAD", "FIOCLEX",
	} {
		want[name] = "ok"
	}
	for name, result := range change {
		want[name] = result
	}
	return want
}

// compareCalls ignores the attempts that an architecture does not have.
func compareCalls(t *testing.T, want, got map[string]string) {
	t.Helper()
	for name := range want {
		if _, ok := got[name]; !ok && (name == "modify_ldt" || name == "socket vsock, upper half set") {
			delete(want, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("system calls (-want +got):\n%s", diff)
	}
}

func TestSystemCallsOfWorkspace(t *testing.T) {
	t.Parallel()
	for sudo, change := range map[bool]map[string]string{
		false: nil,
		// The profile allows chroot, and the kernel looks up the path before it checks
		// the user's capabilities.
		true: {"chroot": "ENOENT"},
	} {
		if sudo && !harness.Verifying() {
			continue
		}
		r := newRuntime(t, func(c *Config) { c.Sudo = sudo })
		up := running(t, r)
		putProbe(t, r, up.ContainerID, "")
		compareCalls(t, callsOf(change), probeInside[map[string]string](t, r, up.ContainerID, "/probe", "calls"))
	}
}

func TestSystemCallsOfHelperAndJob(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.HelperBinary = probeBinary(t, "") })
	image, err := r.helper.Image(t.Context())
	check(t, err)
	t.Run("helper", func(t *testing.T) {
		var out bytes.Buffer
		err := r.helper.Run(t.Context(), helper.Run{Args: []string{"calls"}, Line: func(line []byte) { out.Write(line) }})
		check(t, err)
		compareCalls(t, callsOf(nil), parsed[map[string]string](t, out.String()))
	})
	t.Run("job", func(t *testing.T) {
		made, err := r.engine.API.ContainerCreate(t.Context(), helper.Confined{
			Name: "codehub-test-" + engine.RandomHex(4), Image: image, Entrypoint: []string{"/codehub", runtime.JobCommand}, Cmd: []string{"calls"},
			Labels: r.engine.Labels("test", "", ""), Caps: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"}, Limits: helper.JobLimits(),
		}.Options())
		check(t, err)
		check(t, r.helper.Await(t.Context(), made.ID, nil))
		compareCalls(t, callsOf(nil), parsed[map[string]string](t, r.helper.Printed(t.Context(), made.ID)))
	})
}

// What people do in the default image works under the profile.
func TestWorkInWorkspaceImage(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.IDEImage = harness.IDEImage() })
	spec := newHome()
	spec.Image = harness.WorkspaceImage()
	up := startSpec(t, r, spec)
	for name, script := range map[string]string{
		"git":    "cd $(mktemp -d) && git init -q && echo x > a && git add a && git -c user.name=a -c user.email=a@example.com commit -qm a && git clone -q . b && git -C b log --oneline | wc -l",
		"copies": "cd $(mktemp -d) && mkdir a && echo x > a/f && cp -a a b && cp --reflink=auto a/f b/g && tar cf - b | (mkdir c && tar xpf - -C c) && mv c/b d && cat d/g | wc -l",
		"node":   `/opt/codehub-ide/lib/node -e 'new (require("worker_threads").Worker)("require(\"fs\").writeFileSync(\"/tmp/w\",\"1\")",{eval:true}).on("exit",()=>console.log(require("child_process").execSync("cat /tmp/w").toString().trim()))'`,
		// An IPv6 socket, a Unix socket and a server in the workspace.
		"sockets": `/opt/codehub-ide/lib/node -e 'require("http").createServer((q,s)=>s.end("1")).listen(3456,()=>require("http").get("http://localhost:3456",r=>r.on("data",d=>{console.log(""+d);process.exit()})))'`,
		"ssh":     "ssh-keygen -q -t ed25519 -N '' -f /tmp/key && ssh-agent sh -c 'ssh-add -q /tmp/key && ssh-add -l | wc -l'",
		"ps":      "ps -e | grep -c entry.js > /dev/null; echo 1",
	} {
		out, err := inside(t.Context(), r, up.ContainerID, "bash", "-c", script)
		if err != nil || strings.TrimSpace(out) != "1" {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	putProbe(t, r, up.ContainerID, "")
	compareCalls(t, callsOf(nil), probeInside[map[string]string](t, r, up.ContainerID, "/probe", "calls"))
}
