package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/testing/runtimetest/script"
	"codehub/internal/workspace"
)

// helperBinary builds the helper alone, static, once.
var helperBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "codehub-helper-")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "helper")
	cmd := exec.Command("go", "build", "-o", bin, "./testdata/helper")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the helper: %w: %s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	harness.Parallel(6) // they wait for Docker most of the time
	code := m.Run()
	if bin, err := helperBinary(); err == nil {
		os.RemoveAll(filepath.Dir(bin))
	}
	if probes.dir != "" {
		os.RemoveAll(probes.dir)
	}
	os.Exit(code)
}

// newRuntime returns a runtime for a new installation, which is removed at the end
// of the test.
func newRuntime(t *testing.T, change func(*Config)) *Runtime {
	t.Helper()
	harness.NeedsDocker(t)
	bin, err := helperBinary()
	check(t, err)
	subnet := dockertest.NewSubnet(t)
	cfg := Config{
		Installation: uuid.NewString(),
		Settings:     Settings{Subnet: subnet.Prefix, KeepLimits: true},
		DataDir:      t.TempDir(),
		HelperBinary: bin,
		ExtraLabels:  map[string]string{"codehub.test": t.Name()},
		Log:          slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	check(t, subnet.UsedBy(cfg.Installation))
	r, err := New(t.Context(), cfg)
	check(t, err)
	t.Cleanup(func() {
		if err := dismantle(context.Background(), t, r); err != nil && !errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("clean up: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

// newOffline returns a runtime without Docker, for what needs none.
func newOffline(t *testing.T, change func(*Config)) *Runtime {
	t.Helper()
	cfg := Config{Installation: uuid.NewString(), DataDir: t.TempDir(), Host: "unix:///none", Log: harness.Logger(t, 12)}
	if change != nil {
		change(&cfg)
	}
	r, err := New(t.Context(), cfg)
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return r
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// dismantle removes all objects of the installation.
func dismantle(ctx context.Context, t *testing.T, r *Runtime) error {
	containers, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.engine.Filter("")})
	if err != nil {
		return engine.WrapError(ctx, "list containers", err)
	}
	for _, c := range containers.Items {
		err = errors.Join(err, r.engine.Discard(ctx, c.ID))
	}
	volumes, listErr := r.engine.API.VolumeList(ctx, client.VolumeListOptions{Filters: r.engine.Filter("")})
	err = errors.Join(err, listErr)
	for _, v := range volumes.Items {
		_, e := r.engine.API.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
		err = errors.Join(err, e)
	}
	networks, listErr := r.engine.API.NetworkList(ctx, client.NetworkListOptions{Filters: r.engine.Filter("")})
	err = errors.Join(err, listErr)
	for _, n := range networks.Items {
		var e error
		// A busy Docker takes a while to disconnect a container that was removed as it started.
		harness.Eventually(t, "the network has no endpoints", func() bool {
			_, e = r.engine.API.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
			return e == nil || !strings.Contains(e.Error(), "has active endpoints")
		})
		err = errors.Join(err, e)
	}
	images, listErr := r.engine.API.ImageList(ctx, client.ImageListOptions{Filters: r.engine.Filter("")})
	err = errors.Join(err, listErr)
	for _, i := range images.Items {
		_, e := r.engine.API.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		err = errors.Join(err, ignoreNotFound(e))
	}
	return errors.Join(err, removeWall(ctx, r))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must is check for a call that also returns something.
func must(t *testing.T) func(_ any, err error) {
	return func(_ any, err error) {
		t.Helper()
		check(t, err)
	}
}

// newHome describes a workspace whose home does not exist yet.
func newHome() runtime.ContainerSpec {
	return runtime.ContainerSpec{
		Size:      workspace.Size{Name: "large", NanoCPUs: 15e8, Memory: 1 << 30},
		Workspace: workspace.ID(uuid.NewString()), UID: workspace.ArchivedUID, Claim: "s", Image: harness.TestImage(),
		Storage: workspace.StorageDockerVolume, VolumeClaim: "h", Secret: engine.RandomHex(32),
	}
}

func volumeOf(spec runtime.ContainerSpec) runtime.VolumeSpec {
	return runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image, Disk: spec.Size.Disk}
}

// seededHome creates a home that a container can start on.
func seededHome(t *testing.T, r *Runtime) runtime.ContainerSpec {
	t.Helper()
	spec := newHome()
	seed(t, r, spec)
	return spec
}

func seed(t *testing.T, r *Runtime, spec runtime.ContainerSpec) {
	t.Helper()
	check(t, r.CreateVolume(t.Context(), volumeOf(spec), nil))
}

// start starts a workspace whose home exists, and waits for its IDE.
func start(t *testing.T, r *Runtime, spec runtime.ContainerSpec) runtime.Container {
	t.Helper()
	c, err := r.StartContainer(t.Context(), spec, nil)
	check(t, err)
	awaitHealthy(t, r, c)
	return c
}

// startSpec is start for a workspace whose home it creates.
func startSpec(t *testing.T, r *Runtime, spec runtime.ContainerSpec) runtime.Upstream {
	t.Helper()
	seed(t, r, spec)
	if spec.UID != workspace.ArchivedUID || spec.Image != harness.TestImage() {
		check(t, r.OwnHome(t.Context(), ownOf(spec), nil))
	}
	start(t, r, spec)
	up, err := r.Upstream(t.Context(), spec.Workspace)
	check(t, err)
	return up
}

// ownOf gives the home to the uid of its workspace.
func ownOf(spec runtime.ContainerSpec) runtime.OwnSpec {
	return runtime.OwnSpec{Workspace: spec.Workspace, VolumeClaim: spec.VolumeClaim, UID: spec.UID, From: []uint32{workspace.ArchivedUID, 0}}
}

// running starts a workspace of the test image.
func running(t *testing.T, r *Runtime) runtime.Upstream {
	t.Helper()
	return startSpec(t, r, newHome())
}

func awaitHealthy(t *testing.T, r *Runtime, c runtime.Container) {
	t.Helper()
	for {
		err := r.Probe(t.Context(), c)
		if err == nil {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func conformanceHarness(t *testing.T, storage string) runtimetest.Harness {
	return conformanceHarnessIn(t, storage, nil)
}

func conformanceHarnessIn(t *testing.T, storage string, change func(*Config)) runtimetest.Harness {
	r := newRuntime(t, change)
	neighbour := newRuntime(t, func(c *Config) { c.DataDir = r.cfg.DataDir })
	down := newRuntime(t, func(c *Config) { c.Host = "unix://" + filepath.Join(t.TempDir(), "no-engine.sock") })
	h := direct{r: r, storage: storage}
	registry := sync.OnceValue(func() string { return dockertest.Distribution(t) })
	return runtimetest.Harness{
		Runtime: r, Neighbour: neighbour, Down: down,
		Storage: storage, Image: harness.TestImage(),
		Homes: runtimetest.Homes{
			Seed: readTree(t, r, mount.Mount{}), Content: h.home, Take: h.takeVolume, HalfSeed: h.halfSeed, HalfRemove: h.halfRemove, Use: h.use, Edit: h.edit,
			PutForeign: h.putForeign, FillForeign: h.put, Aside: h.aside, TakeAside: h.takeAside,
		},
		Containers: runtimetest.Containers{HalfStart: h.halfStart, End: h.endContainer, Take: h.takeContainer, Environment: h.environment, Write: write},
		Jobs:       runtimetest.Jobs{Half: h.halfJob, End: h.endJob, ReadOnlyCode: script.CodeFailed},
		Images: runtimetest.Images{
			Missing:   "127.0.0.1:9/codehub/missing:latest",
			Pullable:  func(sub *testing.T) string { return pushImage(t, sub, r, registry()) },
			Republish: func(sub *testing.T, ref string) { republish(sub, r, ref) },
			Take:      func(sub *testing.T, id string) { takeImage(sub, r, id) },
		},
		Remains: h.remains,
	}
}

func TestDockerVolumeConforms(t *testing.T) {
	t.Parallel()
	runtimetest.Conformance(t, func(t *testing.T) runtimetest.Harness {
		return conformanceHarness(t, workspace.StorageDockerVolume)
	})
}

func TestLocalDirConforms(t *testing.T) {
	t.Parallel()
	runtimetest.HomeConformance(t, func(t *testing.T) runtimetest.Harness {
		return conformanceHarness(t, workspace.StorageLocalDir)
	})
}

// direct changes Docker and the data directory directly, bypassing the runtime.
type direct struct {
	r       *Runtime
	storage string
}

func (h direct) home(t *testing.T, id workspace.ID) []runtimetest.File {
	t.Helper()
	if h.storage == workspace.StorageLocalDir {
		return readTree(t, h.r, mount.Mount{Type: mount.TypeBind, Source: h.r.homes.Path(id), Target: runtime.HomeDir})
	}
	return readTree(t, h.r, mount.Mount{
		Type: mount.TypeVolume, Source: id.VolumeName(), Target: runtime.HomeDir,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	})
}

// readTree reads HomeDir as a container of the test image sees it.
func readTree(t *testing.T, r *Runtime, home mount.Mount) []runtimetest.File {
	t.Helper()
	return readTreeOf(t, r, harness.TestImage(), home)
}

func readTreeOf(t *testing.T, r *Runtime, image string, home mount.Mount) []runtimetest.File {
	t.Helper()
	ctx := context.Background()
	opts := client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Cmd: []string{"never-started"}, Labels: r.engine.Labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	}
	if home.Source != "" {
		opts.HostConfig.Mounts = []mount.Mount{home}
	}
	c, err := r.engine.API.ContainerCreate(ctx, opts)
	if err != nil {
		t.Fatalf("the tests need the image %s (make image, or CODEHUB_TEST_IMAGE): %v", image, err)
	}
	defer func() {
		if err := r.engine.Discard(ctx, c.ID); err != nil {
			t.Error(err)
		}
	}()
	res, err := r.engine.API.CopyFromContainer(ctx, c.ID, client.CopyFromContainerOptions{SourcePath: runtime.HomeDir})
	check(t, err)
	defer res.Content.Close()
	var out []runtimetest.File
	for tr := tar.NewReader(res.Content); ; {
		hd, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		check(t, err)
		content, err := io.ReadAll(tr)
		check(t, err)
		name := strings.TrimPrefix(strings.TrimPrefix(path.Clean(hd.Name), path.Base(runtime.HomeDir)), "/")
		if name == "" {
			name = "."
		}
		mode := hd.FileInfo().Mode()
		out = append(out, runtimetest.File{
			Path: name, Mode: mode & (fs.ModeType | fs.ModePerm | fs.ModeSticky | fs.ModeSetgid | fs.ModeSetuid),
			UID: hd.Uid, GID: hd.Gid, Content: string(content),
		})
	}
	slices.SortFunc(out, func(a, b runtimetest.File) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// request sends a request to the test server in a workspace.
func request(t *testing.T, up runtime.Upstream, method, target string, body io.Reader) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+up.Addr+target, body)
	check(t, err)
	req.AddCookie(&http.Cookie{Name: runtime.SecretCookie, Value: up.Secret})
	res, err := http.DefaultClient.Do(req)
	check(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s %v", method, target, res.Status, answer, err)
	}
	return answer
}

func write(t *testing.T, _ workspace.ID, up runtime.Upstream, name, content string) {
	t.Helper()
	request(t, up, http.MethodPut, "/file?path="+name, strings.NewReader(content))
}

// homeMount mounts a home as another program's container does.
func (h direct) homeMount(id workspace.ID, readOnly bool) mount.Mount {
	m := mount.Mount{Type: mount.TypeVolume, Source: id.VolumeName(), Target: runtime.JobHomeDir, ReadOnly: readOnly}
	if h.storage == workspace.StorageLocalDir {
		m.Type, m.Source = mount.TypeBind, h.r.homes.Path(id)
	}
	return m
}

// use mounts the home in a container that is not codehub's.
func (h direct) use(t *testing.T, id workspace.ID, name string, running bool) (leave func()) {
	t.Helper()
	c, err := h.r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name:       name,
		Config:     &container.Config{Image: harness.TestImage(), Labels: h.r.engine.Labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{h.homeMount(id, true)}},
	})
	if err == nil && running {
		_, err = h.r.engine.API.ContainerStart(t.Context(), c.ID, client.ContainerStartOptions{})
	}
	check(t, err)
	leave = sync.OnceFunc(func() {
		if err := h.r.engine.Discard(context.Background(), c.ID); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(leave)
	return leave
}

// edit changes a home in a container that is not codehub's.
func (h direct) edit(t *testing.T, id workspace.ID, lines ...string) {
	t.Helper()
	image, err := h.r.helper.Image(t.Context())
	check(t, err)
	c, err := h.r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{
			Image: image, Entrypoint: []string{"/codehub", "edit"}, Cmd: []string{strings.Join(lines, "\n") + "\nexit 0\n"},
			User: "0:0", Labels: h.r.engine.Labels("test", "", ""),
		},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{h.homeMount(id, false)}},
	})
	check(t, err)
	if err := h.r.helper.Await(t.Context(), c.ID, nil); err != nil {
		t.Error(err)
	}
	check(t, h.r.engine.Discard(t.Context(), c.ID))
}

// halfSeed leaves a partially seeded volume without a seed container.
func (h direct) halfSeed(t *testing.T, spec runtime.VolumeSpec) {
	t.Helper()
	ctx := t.Context()
	if h.storage == workspace.StorageLocalDir {
		h.interrupt(t, runtime.StepSeeding, func(ctx context.Context, progress func(runtime.Progress)) error {
			return h.r.CreateVolume(ctx, spec, progress)
		})
		putFileWith(t, h.r.homes.Path(spec.Workspace), "half", "ha")
		return
	}
	_, err := h.r.engine.API.VolumeCreate(ctx, client.VolumeCreateOptions{
		Name: spec.Workspace.VolumeName(), Labels: h.r.engine.Labels(engine.RoleHome, spec.Workspace, spec.Claim),
	})
	check(t, err)
	h.put(t, spec.Workspace, "half", "")
}

// put writes a file to a home directly.
func (h direct) put(t *testing.T, id workspace.ID, name, content string) {
	t.Helper()
	ctx := t.Context()
	if h.storage == workspace.StorageLocalDir {
		putFileWith(t, h.r.homes.Path(id), name, content)
		return
	}
	c, err := h.r.engine.API.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: harness.TestImage(), Cmd: []string{"never-started"}, Labels: h.r.engine.Labels("test", "", "")},
		HostConfig: &container.HostConfig{Mounts: []mount.Mount{{
			Type: mount.TypeVolume, Source: id.VolumeName(), Target: "/home-put",
			VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}}},
	})
	check(t, err)
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	err = tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))})
	if err == nil {
		_, err = io.WriteString(tw, content)
	}
	check(t, errors.Join(err, tw.Close()))
	must(t)(h.r.engine.API.CopyToContainer(ctx, c.ID, client.CopyToContainerOptions{DestinationPath: "/home-put", Content: &b}))
	check(t, h.r.engine.Discard(ctx, c.ID))
}

func putFile(t *testing.T, dir, name string) { t.Helper(); putFileWith(t, dir, name, "") }

func putFileWith(t *testing.T, dir, name, content string) {
	t.Helper()
	check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

func (h direct) halfStart(t *testing.T, spec runtime.ContainerSpec) {
	t.Helper()
	net, err := h.r.network.Checked(t.Context(), networkMaxAge)
	check(t, err)
	var as runAs
	if as.RunAs, err = h.r.images.RunAs(t.Context(), spec.Image); err == nil {
		as.agent, as.agentDigest, err = h.r.tools.Agent(t.Context())
	}
	if err == nil && !as.Included {
		as.ide, _, err = h.r.tools.IDE(t.Context())
	}
	check(t, err)
	as.names = h.r.images.MountNames(t.Context(), as.RunAs, spec.UID)
	opts := h.r.createOptions(spec, as, net, h.r.network.TakeAddress(), "crashed")
	must(t)(h.r.engine.API.ContainerCreate(t.Context(), opts))
}

func (h direct) halfJob(t *testing.T, spec runtime.JobSpec) string {
	t.Helper()
	labels := h.r.engine.Labels(engine.RoleJob, spec.Workspace, spec.Claim)
	labels[engine.LabelKind], labels[engine.LabelVolume], labels[engine.LabelKey] = string(spec.Kind), spec.VolumeClaim, spec.Key
	made, err := h.r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name:       engine.JobName(spec.Kind, spec.Workspace),
		Config:     &container.Config{Image: harness.TestImage(), Labels: labels},
		HostConfig: &container.HostConfig{Mounts: []mount.Mount{h.homeMount(spec.Workspace, spec.Kind == runtime.JobArchive)}},
	})
	check(t, err)
	return made.ID
}

// ownHomes lists the homes of r's installation. Volumes without labels, which other
// tests create, are visible to every installation.
func ownHomes(t *testing.T, r *Runtime) []runtime.Volume {
	t.Helper()
	list, err := r.Volumes(t.Context())
	check(t, err)
	return slices.DeleteFunc(list, func(v runtime.Volume) bool { return v.Foreign })
}

// halfRemove leaves a home whose removal has begun, with its content.
func (h direct) halfRemove(t *testing.T, id workspace.ID, claim string) {
	t.Helper()
	ctx := t.Context()
	if h.storage == workspace.StorageLocalDir {
		folder := h.r.homes.Folder(id)
		putFileWith(t, folder, "home.json", fmt.Sprintf(`{"installation":%q,"claim":%q,"state":"removing"}`, h.r.cfg.Installation, claim))
		check(t, homequota.Discard(folder, ".removed-half"))
		return
	}
	// A server of the same installation, which cannot start the remover.
	e := newFaultProxy(t)
	e.fail("/start", answer(http.StatusInternalServerError, "it dies"))
	cfg := h.r.cfg
	cfg.Host = e.host
	other, err := New(ctx, cfg)
	check(t, err)
	t.Cleanup(func() { check(t, other.Close()) })
	if err := other.RemoveVolume(ctx, id, claim, nil); err == nil {
		t.Fatal("the home is removed")
	}
}

// interrupt ends a call when it shows a step.
func (h direct) interrupt(t *testing.T, step string, call func(context.Context, func(runtime.Progress)) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := call(ctx, func(p runtime.Progress) {
		if p.Step == step {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the interrupted call: %v", err)
	}
}

func (h direct) endJob(t *testing.T, jobID string) {
	t.Helper()
	must(t)(h.r.engine.API.ContainerKill(t.Context(), jobID, client.ContainerKillOptions{Signal: "KILL"}))
}

func (h direct) endContainer(t *testing.T, id workspace.ID) {
	t.Helper()
	must(t)(h.r.engine.API.ContainerStop(t.Context(), id.DockerName(), client.ContainerStopOptions{}))
}

func (h direct) takeContainer(t *testing.T, id workspace.ID) {
	t.Helper()
	check(t, h.r.engine.Discard(t.Context(), id.DockerName()))
}

// takeVolume removes the home, and as little else as Docker permits.
func (h direct) takeVolume(t *testing.T, id workspace.ID) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if h.storage == workspace.StorageLocalDir {
		check(t, os.RemoveAll(h.r.homes.Path(id)))
		return
	}
	users, err := h.r.engine.Users(ctx, id.VolumeName())
	check(t, err)
	for _, u := range users {
		check(t, h.r.engine.Discard(ctx, u.ID))
	}
	must(t)(h.r.engine.API.VolumeRemove(ctx, id.VolumeName(), client.VolumeRemoveOptions{}))
}

func (h direct) putForeign(t *testing.T, id workspace.ID) {
	t.Helper()
	if h.storage == workspace.StorageLocalDir {
		check(t, os.MkdirAll(h.r.homes.Path(id), 0o755))
		return
	}
	must(t)(h.r.engine.API.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: id.VolumeName()}))
}

// aside reads a set-aside home.
func (h direct) aside(t *testing.T, name string) []runtimetest.File {
	t.Helper()
	if h.storage == workspace.StorageLocalDir {
		return readTree(t, h.r, mount.Mount{Type: mount.TypeBind, Source: filepath.Join(name, "home"), Target: runtime.HomeDir})
	}
	return readTree(t, h.r, mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: runtime.HomeDir,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	})
}

// takeAside removes it as docs/troubleshooting.md describes.
func (h direct) takeAside(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if h.storage == workspace.StorageLocalDir {
		check(t, os.RemoveAll(name))
		return
	}
	check(t, h.r.engine.Discard(ctx, engine.AsideHolderName(name)))
	must(t)(h.r.engine.API.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}))
}

func (h direct) remains(t *testing.T, id workspace.ID) []string {
	t.Helper()
	ctx := t.Context()
	var out []string
	containers, err := h.r.engine.API.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("name", string(id)),
	})
	check(t, err)
	for _, c := range containers.Items {
		out = append(out, c.Names...)
	}
	volumes, err := h.r.engine.API.VolumeList(ctx, client.VolumeListOptions{Filters: client.Filters{}.Add("name", string(id))})
	check(t, err)
	for _, v := range volumes.Items {
		out = append(out, v.Name)
	}
	if _, err := os.Lstat(h.r.homes.Folder(id)); err == nil {
		out = append(out, h.r.homes.Folder(id))
	}
	return out
}

func (h direct) environment(t *testing.T, id workspace.ID) (hostname string, env map[string]string) {
	t.Helper()
	found, err := h.r.engine.API.ContainerInspect(t.Context(), id.DockerName(), client.ContainerInspectOptions{})
	check(t, err)
	env = map[string]string{}
	for _, variable := range found.Container.Config.Env {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	hostname, _, _ = strings.Cut(found.Container.Config.Hostname, ".")
	return hostname, env
}
