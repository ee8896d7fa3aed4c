package docker

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/wall"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// populated creates an installation with a running workspace, a local-dir one, an ended storage
// job and a set-aside volume.
func populated(t *testing.T, r *Runtime) (running, folder, archived workspace.ID) {
	t.Helper()
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ctx := t.Context()
	ok("Prepare", r.Prepare(ctx))
	homes := map[string]workspace.ID{}
	for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
		id := workspace.ID(uuid.NewString())
		homes[storage] = id
		ok("CreateVolume", r.CreateVolume(ctx, runtime.VolumeSpec{Workspace: id, Storage: storage, Claim: "home", Image: harness.TestImage()}, nil))
		ok("SettleVolume", r.SettleVolume(ctx, id, "home"))
		direct{r: r, storage: storage}.put(t, id, "content", "kept")
	}
	running = homes[workspace.StorageDockerVolume]
	_, err := r.StartContainer(ctx, runtime.ContainerSpec{
		UID:       1000,
		Workspace: running, Claim: "start", Image: harness.TestImage(), Storage: workspace.StorageDockerVolume, VolumeClaim: "home", Secret: "s",
	}, nil)
	ok("StartContainer", err)
	archived = workspace.ID(uuid.NewString())
	ok("CreateEmptyVolume", r.CreateEmptyVolume(ctx, runtime.VolumeSpec{Workspace: archived, Storage: workspace.StorageDockerVolume, Claim: "home"}))
	job, err := r.jobs.StartJob(ctx, runtime.JobSpec{
		Workspace: archived, Claim: "op", Kind: runtime.JobRestore, Storage: workspace.StorageDockerVolume, VolumeClaim: "home", Key: "key",
		Input: []byte("wipe\nwrite content restored\nexit 0\n"), ObjectDir: t.TempDir(),
	}, nil)
	ok("StartJob", err)
	_, err = r.jobs.FollowJob(ctx, job.ID, func([]byte) {})
	ok("FollowJob", err)
	ok("MarkRestored", r.MarkRestored(ctx, archived, "home", "key"))
	id, _ := blocked(t, r)
	_, err = r.SetAside(ctx, id, "", "", nil)
	ok("SetAside", err)
	return running, homes[workspace.StorageLocalDir], archived
}

func hasWall(t *testing.T, r *Runtime) bool {
	t.Helper()
	err := wall.Check(wall.Spec{Table: r.engine.Names.Table, Bridge: r.engine.Names.Bridge})
	if err != nil && !errors.Is(err, wall.ErrDown) {
		t.Fatal(err)
	}
	return err == nil
}

// kinds counts an inventory's items by kind.
func kinds(items []runtime.Item) map[string]int {
	n := map[string]int{}
	for _, i := range items {
		n[i.Kind]++
	}
	return n
}

// An uninstall keeps other installations, homes unless their removal is asked for, and set-aside
// volumes in any case. It takes 30 s, as two installations are filled and
// removed one after the other.
func TestUninstall(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	other := newRuntime(t, func(c *Config) { c.DataDir = r.cfg.DataDir })
	running, folder, archived := populated(t, r)
	populated(t, other)
	ctx := t.Context()
	others, err := other.Inventory(ctx)
	check(t, err)

	var gone []runtime.Item
	for range 2 { // it may be repeated
		check(t, r.Uninstall(ctx, false, func(i runtime.Item) { gone = append(gone, i) }))
	}
	if n := kinds(gone); n["container"] < 3 || n["network"] != 1 || n["image"] == 0 || n["nftables table"] != 4 || n["home"] != 0 {
		t.Errorf("removed: %v", n)
	}
	inv, err := r.Inventory(ctx)
	check(t, err)
	if n := kinds(inv.Remove); len(n) != 1 || n["nftables table"] != 2 { // always listed
		t.Errorf("left: %+v", inv.Remove)
	}
	if n := kinds(inv.Homes); n["home"] != 3 || n["record of a home"] != 3 || kinds(inv.Keep)["set aside"] != 1 {
		t.Errorf("homes %+v, kept %+v", inv.Homes, inv.Keep)
	}
	if hasWall(t, r) || !hasWall(t, other) {
		t.Errorf("walls: ours %v, the other's %v", hasWall(t, r), hasWall(t, other))
	}
	for id, storage := range map[workspace.ID]string{
		running: workspace.StorageDockerVolume, folder: workspace.StorageLocalDir, archived: workspace.StorageDockerVolume,
	} {
		want := map[bool]string{true: "restored", false: "kept"}[id == archived]
		if !hasContent(direct{r: r, storage: storage}.home(t, id), want) {
			t.Errorf("the home of %s has changed", id)
		}
	}
	now, err := other.Inventory(ctx)
	check(t, err)
	if !slices.Equal(now.Remove, others.Remove) || !slices.Equal(now.Homes, others.Homes) || !slices.Equal(now.Keep, others.Keep) {
		t.Errorf("the other installation has %+v, had %+v", now, others)
	}

	gone = nil
	check(t, r.Uninstall(ctx, true, func(i runtime.Item) { gone = append(gone, i) }))
	if n := kinds(gone); n["home"] != 3 {
		t.Errorf("removed: %v", n)
	}
	inv, err = r.Inventory(ctx)
	if err != nil || len(inv.Homes) != 0 || kinds(inv.Keep)["set aside"] != 1 {
		t.Errorf("left: %+v, %v", inv, err)
	}
	if _, err := os.Lstat(r.homes.Folder(folder)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
	// Set-aside volumes are only removed by hand.
	asides, err := r.Asides(ctx)
	if err != nil || len(asides) != 1 || !asides[0].Complete {
		t.Fatalf("set aside: %+v, %v", asides, err)
	}
	direct{r: r, storage: workspace.StorageDockerVolume}.takeAside(t, asides[0].Name)
	check(t, r.Uninstall(ctx, true, func(runtime.Item) {}))
	left, err := r.engine.API.ImageList(ctx, client.ImageListOptions{Filters: r.engine.Filter("")})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("images left: %+v, %v", left.Items, err)
	}
}
