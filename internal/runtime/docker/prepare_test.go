package docker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/wall"
	"codehub/internal/workspace"
)

func TestStartFailsWithoutWall(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{false, true} {
		r := newRuntime(t, func(c *Config) { c.AllowNoWall = allowed })
		r.network.Apply = func(wall.Spec) error { return errors.New("no nftables here") }
		spec := seededHome(t, r)
		_, err := r.StartContainer(t.Context(), spec, nil)
		prepared := r.Prepare(t.Context())
		if allowed {
			if err != nil || prepared != nil {
				t.Errorf("with isolation optional: %v; %v", err, prepared)
			}
			continue
		}
		for _, err := range []error{err, prepared} {
			if err == nil || !strings.Contains(err.Error(), "no nftables here") || errors.Is(err, runtime.ErrUnreachable) {
				t.Errorf("error = %v", err)
			}
		}
		if list, err := r.Containers(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("containers = %+v, %v", list, err)
		}
	}
}

func TestHelperSetsWall(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	now := time.Now()
	r.engine.Now = func() time.Time { return now }
	r.network.Apply = func(wall.Spec) error { return fs.ErrPermission }
	check(t, r.Prepare(t.Context()))
	spec := wall.Spec{Table: r.engine.Names.Table, Bridge: r.engine.Names.Bridge}
	if err := wall.Check(spec); err != nil {
		t.Fatalf("after the helper: %v", err)
	}
	check(t, wall.Remove(r.engine.Names.Table))
	check(t, r.Prepare(t.Context()))
	if err := wall.Check(spec); err == nil {
		t.Error("the helper has set the wall again at once")
	}
	now = now.Add(4 * time.Minute)
	check(t, r.Prepare(t.Context()))
	check(t, wall.Check(spec))
	list, err := r.engine.API.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: r.engine.Filter(engine.RoleHelper)})
	if err != nil || len(list.Items) != 0 {
		t.Fatalf("helpers left behind: %+v, %v", list.Items, err)
	}
}

func TestHelperRemovesHomes(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := runtime.VolumeSpec{Workspace: newHome().Workspace, Storage: workspace.StorageLocalDir, Claim: "h"}
	spec.Image = importImage(t, r, []string{"USER 1000"}, homeTar(t))
	check(t, r.CreateVolume(t.Context(), spec, nil))
	check(t, r.helper.Run(t.Context(), helper.Run{
		Args: []string{helper.CmdRemoveHome, "/folder/home"}, Caps: []string{"DAC_OVERRIDE", "FOWNER"},
		Mounts: []mount.Mount{{Type: mount.TypeBind, Source: filepath.Dir(r.homes.Path(spec.Workspace)), Target: "/folder"}},
	}))
	if _, err := os.Lstat(r.homes.Path(spec.Workspace)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("home after its removal: %v", err)
	}
	err := r.helper.Run(t.Context(), helper.Run{Args: []string{helper.CmdRemoveHome, "/"}})
	if err == nil || !strings.Contains(err.Error(), "absolute path") {
		t.Fatalf("error = %v, want the helper's message", err)
	}
}

func TestHelperImageMatchesExecutable(t *testing.T) {
	t.Parallel()
	bin, err := helperBinary()
	check(t, err)
	raw, err := os.ReadFile(bin)
	check(t, err)
	copied := filepath.Join(t.TempDir(), "codehub")
	check(t, os.WriteFile(copied, raw, 0o755))
	r := newRuntime(t, func(c *Config) { c.HelperBinary = copied })
	first, err := r.helper.Image(t.Context())
	check(t, err)
	if again, err := r.helper.Image(t.Context()); err != nil || again != first {
		t.Fatalf("second time: %s, %v; want %s", again, err, first)
	}
	check(t, os.WriteFile(copied, append(raw, 0), 0o755))
	next, err := r.helper.Image(t.Context())
	if err != nil || next == first {
		t.Fatalf("after an upgrade: %s, %v", next, err)
	}
	images, err := r.engine.API.ImageList(t.Context(), client.ImageListOptions{Filters: r.engine.Filter(engine.RoleHelper)})
	if err != nil || len(images.Items) != 1 {
		t.Fatalf("helper images = %+v, %v", images.Items, err)
	}
	r = newRuntime(t, func(c *Config) { c.HelperBinary = filepath.Join(t.TempDir(), "none") })
	if _, err := r.helper.Image(t.Context()); err == nil {
		t.Fatal("an image was created without content")
	}
}

func TestHelperArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		nil, {"wall"}, {"dance", "x"}, {"wall", "{"}, {"wall", `{"table":"t"}`}, {"wall", `{"tabel":"t"}`},
		{"remove-home", "/"}, {"remove-home", "relative"}, {"remove-home", "//"},
		{"empty-home", "/"}, {"is-empty", "relative"}, {"is-empty", "/proc/self"}, {"sync", "/none"}, {"count", "/none"},
	} {
		var words strings.Builder
		if code := helperMain(args, &words, &words); code == 0 || words.Len() == 0 {
			t.Errorf("host-helper %q: code %d, %q", args, code, words.String())
		}
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	ctx := t.Context()
	orphan, kept := newHome(), newHome()
	for _, s := range []runtime.ContainerSpec{orphan, kept} {
		spec := runtime.VolumeSpec{Workspace: s.Workspace, Storage: s.Storage, Claim: s.VolumeClaim, Image: s.Image}
		check(t, r.CreateVolume(ctx, spec, nil))
		check(t, r.SettleVolume(ctx, s.Workspace, s.VolumeClaim))
	}
	direct{r: r, storage: workspace.StorageDockerVolume}.takeVolume(t, orphan.Workspace)
	var counts []int
	for range 3 {
		check(t, r.sweep(ctx))
		proofs, err := r.engine.API.VolumeList(ctx, client.VolumeListOptions{Filters: r.engine.Filter(engine.RoleSettled)})
		check(t, err)
		counts = append(counts, len(proofs.Items))
	}
	if diff := cmp.Diff([]int{2, 1, 1}, counts); diff != "" {
		t.Errorf("proofs after each sweep (-want +got):\n%s", diff)
	}

	// A helper left by a crash.
	image, err := r.helper.Image(ctx)
	check(t, err)
	_, err = r.engine.API.ContainerCreate(ctx, client.ContainerCreateOptions{
		Image: image, Name: r.engine.Names.Helper + "-left",
	})
	check(t, err)
	for _, ahead := range []time.Duration{0, helperLife + time.Minute} {
		r.engine.Now = func() time.Time { return time.Now().Add(ahead) }
		check(t, r.sweep(ctx))
		list, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.engine.Filter(engine.RoleHelper)})
		if err != nil || (len(list.Items) == 1) != (ahead == 0) {
			t.Errorf("%s later: helpers = %+v, %v", ahead, list.Items, err)
		}
	}
}
