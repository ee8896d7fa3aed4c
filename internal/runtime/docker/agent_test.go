package docker

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
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
	check(t, err)
	return h
}

// childrenOf lists the children of a process of this host, with their states.
func childrenOf(t *testing.T, pid int) map[int]string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	check(t, err)
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
	check(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
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
	if got, want := procFile(t, first, "cmdline"), []string{account.AgentDir + "/" + account.AgentFile, "agent", "--", "/testserver", "one", "two words"}; !slices.Equal(got, want) {
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
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/root%s", first, account.AgentDir))
	if err != nil || len(files) != 1 || files[0].Name() != account.AgentFile {
		t.Errorf("on the agent's volume: %v, %v", files, err)
	}

	// A command that the agent runs does not get the secret, and cannot change the
	// executable.
	putProbe(t, r, c.ID, "")
	env := run[[]string](t, up, "/probe", "env")
	if slices.ContainsFunc(env, func(e string) bool { return strings.Contains(e, spec.Secret) }) || !slices.Contains(env, "OF_IMAGE=yes") {
		t.Errorf("a command's environment is %q", env)
	}
	for _, file := range []string{account.AgentDir + "/" + account.AgentFile, account.AgentDir + "/more"} {
		if got := run[string](t, up, "/probe", "write", file); !strings.Contains(got, "read-only file system") {
			t.Errorf("writing %s: %s", file, got)
		}
	}

	// Orphans of commands are reaped. A stop ends the agent with the IDE's exit code within the
	// grace: processes that ignore their signals do not delay it.
	run[string](t, up, "/probe", "orphans", "5", "20ms")
	harness.Eventually(t, "the first process has one child, the IDE", func() bool { return len(childrenOf(t, first)) == 1 })
	run[string](t, up, "/probe", "orphans", "3", "10m")
	seconds := 60
	must(t)(r.engine.API.ContainerStop(t.Context(), c.ID, client.ContainerStopOptions{Timeout: &seconds}))
	if state := inspectOf(t, r, up).State; state.ExitCode != 0 {
		t.Errorf("the container ended with code %d: it was killed", state.ExitCode)
	}
}

// run runs a command by the agent and parses what it prints.
func run[T any](t *testing.T, up runtime.Upstream, args ...string) T {
	t.Helper()
	p, err := (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Exec(t.Context(), agent.Command{Args: args})
	check(t, err)
	defer p.Close()
	var out, errs bytes.Buffer
	exit, err := p.Run(&out, &errs)
	if err != nil || exit.Code != 0 {
		t.Fatalf("%q: %+v, %v; it printed %q and %q", args, exit, err, out.String(), errs.String())
	}
	var v T
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("%q printed %q: %v", args, out.String(), err)
	}
	return v
}

// An IDE that dies after a while is started again in the same container, and the
// container's log says why.
func TestIDEIsStartedAgain(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	up := running(t, r)
	c := inspectOf(t, r, up)
	started, err := time.Parse(time.RFC3339Nano, c.State.StartedAt)
	check(t, err)
	harness.Eventually(t, "the IDE has run for a while", func() bool { return time.Since(started) > 6*time.Second })
	ide := ideOf(t, c)
	check(t, syscall.Kill(ide, syscall.SIGKILL))
	harness.Eventually(t, "another IDE answers", func() bool {
		next := ideOf(t, c)
		return next != 0 && next != ide && r.Probe(t.Context(), runtime.Container{Addr: up.Addr}) == nil
	})
	harness.Eventually(t, "the container's log has the reason", func() bool {
		var log strings.Builder
		check(t, r.Logs(t.Context(), workspace.ID(c.Config.Labels[engine.LabelWorkspace]), 0, false, &log))
		return strings.Contains(log.String(), "starting it again") && strings.Contains(log.String(), "killed by SIGKILL")
	})
}

func TestImageWithoutCommand(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	image := importImage(t, r, []string{"USER 1000", "LABEL " + account.LabelIDE + "=" + account.IDEIncluded}, homeTar(t))
	if as, err := r.images.RunAs(t.Context(), image); err == nil || !strings.Contains(err.Error(), "neither ENTRYPOINT nor CMD") {
		t.Errorf("userOf = %+v, %v", as, err)
	}
}

// agentOnDisk returns the digest of the executable on a volume.
func agentOnDisk(t *testing.T, r *Runtime, volume string) string {
	t.Helper()
	v, err := r.engine.API.VolumeInspect(t.Context(), volume, client.VolumeInspectOptions{})
	check(t, err)
	content, err := os.ReadFile(filepath.Join(v.Volume.Mountpoint, account.AgentFile))
	check(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// The volume is made again after it was removed by hand, even for an image that would
// fill it; it is repaired by the next process; and two servers may make it at once.
func TestAgentVolumeIsRepaired(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	other := newRuntime(t, func(c *Config) { c.Installation, c.Subnet = r.cfg.Installation, r.cfg.Subnet })
	var both sync.WaitGroup
	for _, x := range []*Runtime{r, other} {
		both.Go(func() {
			if _, _, err := x.tools.Agent(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	name, digest, err := r.tools.Agent(t.Context())
	check(t, err)
	if again, _, err := other.tools.Agent(t.Context()); err != nil || again != name || name == "" {
		t.Fatalf("the volumes are %q and %q", name, again)
	}
	if got := agentOnDisk(t, r, name); got != digest {
		t.Errorf("on the volume is %s, want %s", got, digest)
	}

	must(t)(r.engine.API.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}))
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
	v, err := r.engine.API.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{})
	check(t, err)
	dir := v.Volume.Mountpoint
	check(t, os.Remove(filepath.Join(dir, account.AgentFile)))
	putFileWith(t, dir, account.AgentFile, "damaged")
	putFileWith(t, dir, account.AgentFile+".part-1", "incomplete")
	other.tools.ForgetAgent()
	if _, _, err := other.tools.Agent(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if got := agentOnDisk(t, r, name); got != digest || err != nil || len(files) != 1 {
		t.Errorf("on the volume is %s in %v, %v", got, files, err)
	}
	hello(t, up) // it has the file that it began with
}

func TestSweepRemovesOldAgentVolumes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	check(t, r.Prepare(t.Context()))
	current, _, err := r.tools.Agent(t.Context())
	check(t, err)
	old := strings.Repeat("0", 64)
	labels := r.engine.Labels(engine.RoleAgent, "", "")
	labels[engine.LabelDigest] = old
	must(t)(r.engine.API.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: r.engine.Names.Tool(engine.RoleAgent, old), Labels: labels}))
	user, err := r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: harness.TestImage(), Labels: r.engine.Labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: engine.NoNetwork, Mounts: r.tools.Mounts(r.engine.Names.Tool(engine.RoleAgent, old), "")},
	})
	check(t, err)
	volumes := func() int {
		list, err := r.engine.API.VolumeList(t.Context(), client.VolumeListOptions{Filters: r.engine.Filter(engine.RoleAgent)})
		check(t, err)
		return len(list.Items)
	}
	if err := r.sweep(t.Context()); err != nil || volumes() != 2 {
		t.Errorf("with a user: %v, %d volumes", err, volumes())
	}
	check(t, r.engine.Discard(t.Context(), user.ID))
	if err := r.sweep(t.Context()); err != nil || volumes() != 1 || agentOnDisk(t, r, current) == "" {
		t.Errorf("without: %v, %d volumes", err, volumes())
	}
}
