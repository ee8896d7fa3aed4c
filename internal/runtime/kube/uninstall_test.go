package kube

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// testUninstall removes an installation twice: the homes stay at first. Another installation
// in the namespace keeps everything.
func testUninstall(t *testing.T, c *cluster) {
	r, other := c.runtime(t), c.runtime(t)
	start := func(r *Runtime) workspace.ID {
		t.Helper()
		id := workspace.ID(uuid.NewString())
		home := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageKubernetes, Claim: "home-1", Image: harness.TestImage()}
		check(t, r.CreateVolume(t.Context(), home, nil))
		_, err := r.StartContainer(t.Context(), runtime.ContainerSpec{
			Workspace: id, UID: workspace.ArchivedUID, Claim: "start-1", Image: home.Image, Storage: home.Storage, VolumeClaim: home.Claim, Secret: "s",
		}, nil)
		check(t, err)
		check(t, r.SetMark(t.Context(), workspace.Mark{ID: uuid.NewString(), Serial: 1, Identity: "here"}))
		return id
	}
	id, neighbour := start(r), start(other)
	inv, err := r.Inventory(t.Context())
	check(t, err)
	has := func(list []runtime.Item, kind, name string) bool {
		return slices.ContainsFunc(list, func(i runtime.Item) bool { return i.Kind == kind && (name == "" || i.Name == name) })
	}
	if !has(inv.Remove, kindPod, id.ContainerName()) || !has(inv.Remove, kindRecord, "") || !has(inv.Homes, "home", id.VolumeName()) || len(inv.Homes) != 1 || len(inv.Keep) > 0 {
		t.Errorf("inventory = %+v", inv)
	}
	var gone []runtime.Item
	if err := r.Uninstall(t.Context(), false, func(i runtime.Item) { gone = append(gone, i) }); err != nil || len(gone) != len(inv.Remove) {
		t.Errorf("removed %+v (%v), want %+v", gone, err, inv.Remove)
	}
	if v, err := ownVolumes(t, r); err != nil || len(v) != 1 || v[0].Workspace != id || !v[0].Seeded || v[0].Removing {
		t.Errorf("homes = %+v, %v", v, err)
	}
	if err := r.Uninstall(t.Context(), true, func(runtime.Item) {}); err != nil {
		t.Error(err)
	}
	if inv, err = r.Inventory(t.Context()); err != nil || len(inv.Remove)+len(inv.Homes)+len(inv.Keep) > 0 {
		t.Errorf("left: %+v, %v", inv, err)
	}
	if _, err := other.Upstream(t.Context(), neighbour); err != nil {
		t.Errorf("the neighbour's workspace: %v", err)
	}
	if _, found, err := other.Mark(t.Context()); !found || err != nil {
		t.Errorf("the neighbour's mark: %v, %v", found, err)
	}
	if err := other.Uninstall(t.Context(), true, func(runtime.Item) {}); err != nil {
		t.Error(err)
	}
}
