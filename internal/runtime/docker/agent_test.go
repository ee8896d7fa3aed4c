package docker

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/agent"
	"codehub/internal/harness"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/workspace"
)

// hello asks a workspace's agent who it is, until it listens.
func hello(t *testing.T, up runtime.Upstream) agent.Hello {
	t.Helper()
	var h agent.Hello
	var err error
	harness.Eventually(t, "the agent answers", func() bool {
		h, err = (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Hello(t.Context())
		return !errors.Is(err, agent.ErrUnreachable)
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// childrenOf lists the children of a process of this host, with their states.
func childrenOf(t *testing.T, pid int) map[int]string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		_, after, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(after)
		if child, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat))); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			out[child] = fields[0]
		}
	}
	return out
}

// ideOf returns the process ID of a container's IDE on this host; 0: it has none.
func ideOf(t *testing.T, c container.InspectResponse) int {
	t.Helper()
	for child, state := range childrenOf(t, c.State.Pid) {
		if state != "Z" {
			return child
		}
	}
	return 0
}

func procFile(t *testing.T, pid int, name string) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// start starts a workspace of an image and waits for its IDE.
func startSpec(t *testing.T, r *Runtime, spec runtime.ContainerSpec) runtime.Upstream {
	t.Helper()
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image}
	if err := r.CreateVolume(t.Context(), volume, nil); err != nil {
		t.Fatal(err)
	}
	if spec.UID != workspace.ArchivedUID || spec.Image != harness.TestImage() {
		if err := r.OwnHome(t.Context(), runtime.OwnSpec{Workspace: spec.Workspace, VolumeClaim: spec.VolumeClaim, UID: spec.UID, From: []uint32{workspace.ArchivedUID, 0}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	c, err := r.StartContainer(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	awaitHealthy(t, r, c)
	up, err := r.Upstream(t.Context(), spec.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

// The agent is the first process, and what the image says about its command holds for
// the IDE: ENTRYPOINT, CMD, ENV and WORKDIR, but not USER. An image cannot bring its own agent.
func TestAgentRunsImagesCommand(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := newHome()
	spec.UID = ownUID
	spec.Image = variant(t, r, []string{"USER app", "ENV OF_IMAGE=yes", `CMD ["one","two words"]`},
		tar.Header{Name: "opt/codehub/", Typeflag: tar.TypeDir, Mode: 0o777},
		tar.Header{Name: "opt/codehub/codehub", Typeflag: tar.TypeReg, Mode: 0o755},
		tar.Header{Name: "opt/codehub/more", Typeflag: tar.TypeReg, Mode: 0o755})
	up := startSpec(t, r, spec)
	if h := hello(t, up); h.Codehub != "test" {
		t.Errorf("the agent = %+v", h)
	}
	c := inspectOf(t, r, up)
	first, ide := c.State.Pid, ideOf(t, c)
	if got, want := procFile(t, first, "cmdline"), []string{agentPath, "agent", "--", "/testserver", "one", "two words"}; !slices.Equal(got, want) {
		t.Errorf("the first process is %q, want %q", got, want)
	}
	if got, want := procFile(t, ide, "cmdline"), []string{"/testserver", "one", "two words"}; !slices.Equal(got, want) {
		t.Errorf("the IDE is %q, want %q", got, want)
	}
	if env := procFile(t, ide, "environ"); !slices.Contains(env, "OF_IMAGE=yes") || !slices.Contains(env, runtime.SecretEnv+"="+spec.Secret) {
		t.Errorf("the IDE's environment is %q", env)
	}
	if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", ide)); err != nil || dir != "/home/coder" {
		t.Errorf("the IDE's folder is %q, %v", dir, err)
	}
	for _, pid := range []int{first, ide} {
		status := strings.Join(procFile(t, pid, "status"), "")
		for _, want := range []string{fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", ownUID), fmt.Sprintf("\nGid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", ownUID), "\nCapEff:\t0000000000000000\n", "\nNoNewPrivs:\t1\n"} {
			if !strings.Contains(status, want) {
				t.Errorf("process %d lacks %q in\n%s", pid, want, status)
			}
		}
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/root%s", first, agentDir))
	if err != nil || len(files) != 1 || files[0].Name() != agentFile {
		t.Errorf("on the agent's volume: %v, %v", files, err)
	}

	// A command that the agent runs does not get the secret, and cannot change the
	// executable.
	putProbe(t, r, c.ID, "")
	env := run[[]string](t, up, "/probe", "env")
	if slices.ContainsFunc(env, func(e string) bool { return strings.Contains(e, spec.Secret) }) || !slices.Contains(env, "OF_IMAGE=yes") {
		t.Errorf("a command's environment is %q", env)
	}
	for _, file := range []string{agentPath, agentDir + "/more"} {
		if got := run[string](t, up, "/probe", "write", file); !strings.Contains(got, "read-only file system") {
			t.Errorf("writing %s: %s", file, got)
		}
	}
}

// run runs a command by the agent and parses what it prints.
func run[T any](t *testing.T, up runtime.Upstream, args ...string) T {
	t.Helper()
	p, err := (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Exec(t.Context(), agent.Command{Args: args})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out, errs bytes.Buffer
	var copies sync.WaitGroup
	copies.Go(func() { _, _ = io.Copy(&out, p.Stdout) })
	copies.Go(func() { _, _ = io.Copy(&errs, p.Stderr) })
	exit, err := p.Wait()
	copies.Wait()
	if err != nil || exit.Code != 0 {
		t.Fatalf("%q: %+v, %v; it printed %q and %q", args, exit, err, out.String(), errs.String())
	}
	var v T
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("%q printed %q: %v", args, out.String(), err)
	}
	return v
}

func TestAgentReapsOrphans(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	up := running(t, r)
	c := inspectOf(t, r, up)
	putProbe(t, r, c.ID, "")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if out, err := inside(t.Context(), r, c.ID, "/probe", "orphans", "5", "20ms"); err != nil || !strings.Contains(out, "nil") {
				t.Errorf("orphans: %q, %v", out, err)
			}
		})
		all.Go(func() { run[string](t, up, "/probe", "orphans", "5", "20ms") })
	}
	all.Wait()
	harness.Eventually(t, "the first process has one child, the IDE", func() bool {
		children := childrenOf(t, c.State.Pid)
		return len(children) == 1
	})
}

// An IDE that dies after a while is started again in the same container, and the
// container's log says why.
func TestIDEIsStartedAgain(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	up := running(t, r)
	c := inspectOf(t, r, up)
	started, err := time.Parse(time.RFC3339Nano, c.State.StartedAt)
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the IDE has run for a while", func() bool { return time.Since(started) > 6*time.Second })
	ide := ideOf(t, c)
	if err := syscall.Kill(ide, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "another IDE answers", func() bool {
		next := ideOf(t, c)
		return next != 0 && next != ide && r.Probe(t.Context(), runtime.Container{Addr: up.Addr}) == nil
	})
	harness.Eventually(t, "the container's log has the reason", func() bool {
		var log strings.Builder
		if err := r.Logs(t.Context(), workspace.ID(c.Config.Labels[labelWorkspace]), 0, false, &log); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log.String(), "starting it again") && strings.Contains(log.String(), "killed by SIGKILL")
	})
}

// An IDE that ends at once ends the container with its exit code.
func TestIDEThatDoesNotComeUpEndsContainer(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := newHome()
	spec.Image = variant(t, r, []string{"ENV TESTSERVER_EXIT=7"})
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image}
	if err := r.CreateVolume(t.Context(), volume, nil); err != nil {
		t.Fatal(err)
	}
	c, err := r.StartContainer(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the container ends with the IDE's code", func() bool {
		state := inspectOf(t, r, runtime.Upstream{ContainerID: c.ID}).State
		return !state.Running && state.ExitCode == 7
	})
	var log strings.Builder
	if err := r.Logs(t.Context(), spec.Workspace, 0, false, &log); err != nil || !strings.Contains(log.String(), "exit code 7") {
		t.Errorf("the log: %v %s", err, log.String())
	}
}

// A stop ends the agent with the IDE and its exit code, within the grace: processes
// that ignore their signals do not delay it.
func TestStopEndsAgent(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	up := running(t, r)
	c := inspectOf(t, r, up)
	putProbe(t, r, c.ID, "")
	run[string](t, up, "/probe", "orphans", "3", "10m")
	seconds := 60
	if _, err := r.api.ContainerStop(t.Context(), c.ID, client.ContainerStopOptions{Timeout: &seconds}); err != nil {
		t.Fatal(err)
	}
	if state := inspectOf(t, r, up).State; state.ExitCode != 0 {
		t.Errorf("the container ended with code %d: it was killed", state.ExitCode)
	}
}

func TestImageWithoutCommand(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	image := importImage(t, r, []string{"USER 1000", "LABEL " + account.LabelIDE + "=" + account.IDEIncluded}, homeTar(t))
	if as, err := r.userOf(t.Context(), image); err == nil || !strings.Contains(err.Error(), "neither ENTRYPOINT nor CMD") {
		t.Errorf("userOf = %+v, %v", as, err)
	}
}

// agentOnDisk returns the digest of the executable on a volume.
func agentOnDisk(t *testing.T, r *Runtime, volume string) string {
	t.Helper()
	v, err := r.api.VolumeInspect(t.Context(), volume, client.VolumeInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	digest, err := fileDigest(filepath.Join(v.Volume.Mountpoint, agentFile))
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// The volume is made again after it was removed by hand, even for an image that would
// fill it; it is repaired by the next process; and two servers may make it at once.
func TestAgentVolumeIsRepaired(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	other := newRuntime(t, func(c *Config) { c.Installation, c.Subnet = r.cfg.Installation, r.cfg.Subnet })
	var both sync.WaitGroup
	for _, x := range []*Runtime{r, other} {
		both.Go(func() {
			if _, _, err := x.ensureAgentVolume(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	name, digest := r.agent.known()
	if again, _ := other.agent.known(); again != name || name == "" {
		t.Fatalf("the volumes are %q and %q", name, again)
	}
	if got := agentOnDisk(t, r, name); got != digest {
		t.Errorf("on the volume is %s, want %s", got, digest)
	}

	if _, err := r.api.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	spec := newHome()
	spec.Image = variant(t, r, nil,
		tar.Header{Name: "opt/codehub/", Typeflag: tar.TypeDir, Mode: 0o777},
		tar.Header{Name: "opt/codehub/codehub", Typeflag: tar.TypeReg, Mode: 0o755})
	up := startSpec(t, r, spec)
	hello(t, up)
	if got := agentOnDisk(t, r, name); got != digest {
		t.Errorf("on the volume is %s, want %s", got, digest)
	}
	if homes := ownHomes(t, r); len(homes) != 1 {
		t.Errorf("homes: %+v", homes)
	}

	// A server was killed while it wrote; another finds a damaged file.
	v, err := r.api.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := v.Volume.Mountpoint
	if err := os.Remove(filepath.Join(dir, agentFile)); err != nil {
		t.Fatal(err)
	}
	putFileWith(t, dir, agentFile, "damaged")
	putFileWith(t, dir, agentFile+".part-1", "incomplete")
	other.agent.forget()
	if _, _, err := other.ensureAgentVolume(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if got := agentOnDisk(t, r, name); got != digest || err != nil || len(files) != 1 {
		t.Errorf("on the volume is %s in %v, %v", got, files, err)
	}
	hello(t, up) // it has the file that it began with
}

func TestSweepRemovesOldAgentVolumes(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	if err := r.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	current, _ := r.agent.known()
	old := strings.Repeat("0", 64)
	if _, err := r.api.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: r.names.tool(roleAgent, old), Labels: r.toolLabels(roleAgent, old)}); err != nil {
		t.Fatal(err)
	}
	user, err := r.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: harness.TestImage(), Labels: r.labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: noNetwork, Mounts: []mount.Mount{r.toolMount(&r.agent, r.names.tool(roleAgent, old))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	volumes := func() int {
		list, err := r.api.VolumeList(t.Context(), client.VolumeListOptions{Filters: r.filter(roleAgent)})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	if err := r.sweep(t.Context()); err != nil || volumes() != 2 {
		t.Errorf("with a user: %v, %d volumes", err, volumes())
	}
	if err := r.discard(t.Context(), user.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.sweep(t.Context()); err != nil || volumes() != 1 || agentOnDisk(t, r, current) == "" {
		t.Errorf("without: %v, %d volumes", err, volumes())
	}
}

// A full disk is an error that says so, and the next start fills the volume.
func TestAgentVolumeOnFullDisk(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	if _, err := r.ensureHelperImage(t.Context()); err != nil {
		t.Fatal(err)
	}
	digest := r.helperDigest()
	name := r.names.tool(roleAgent, digest)
	if _, err := r.api.VolumeCreate(t.Context(), client.VolumeCreateOptions{
		Name: name, Labels: r.toolLabels(roleAgent, digest), DriverOpts: map[string]string{"type": "tmpfs", "device": "tmpfs", "o": "size=64k"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.ensureAgentVolume(t.Context()); !errors.Is(err, runtime.ErrNoSpace) || r.agent.failed.Err() == nil {
		t.Errorf("on a full disk: %v; the condition: %v", err, r.agent.failed.Err())
	}
	if _, err := r.api.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	hello(t, running(t, r))
	if err := r.agent.failed.Err(); err != nil {
		t.Errorf("the condition: %v", err)
	}
}

// A container that an earlier version started has no agent and goes on running.
func TestContainerOfEarlierVersionHasNoAgent(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := newHome()
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image}
	if err := r.CreateVolume(t.Context(), volume, nil); err != nil {
		t.Fatal(err)
	}
	net, err := r.checkedNetwork(t.Context(), networkMaxAge)
	if err != nil {
		t.Fatal(err)
	}
	opts := r.createOptions(spec, runAs{}, net, r.addrs.take(r.now()), "earlier")
	opts.Config.Entrypoint, opts.HostConfig.Mounts = nil, opts.HostConfig.Mounts[:1]
	delete(opts.Config.Labels, labelAgent)
	if _, err := r.api.ContainerCreate(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	c, err := r.StartContainer(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	awaitHealthy(t, r, c)
	if up, err := r.Upstream(t.Context(), spec.Workspace); err != nil || up.Agent != "" || up.Addr != c.Addr {
		t.Errorf("upstream = %+v, %v", up, err)
	}
}
