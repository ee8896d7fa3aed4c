package home

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// Volumes implements runtime.Runtime.
func (h *Homes) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	found, err := h.listHomes(ctx, "")
	if err != nil {
		return nil, err
	}
	folders, err := h.folders()
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Volume, 0, len(found.homes)+len(folders))
	for id := range found.homes {
		out = append(out, found.volume(id))
	}
	for id, records := range found.removing {
		// The volume is gone according to Docker, but the home counts as existing
		// until its removal is durable.
		if _, ok := found.homes[id]; !ok {
			out = append(out, runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: records[0].claim, Removing: true})
			delete(found.foreign, id) // a power cut has brought it back
		}
	}
	for _, v := range folders {
		if _, ok := found.homes[v.Workspace]; ok && v.Foreign {
			continue
		}
		delete(found.foreign, v.Workspace)
		out = append(out, v)
	}
	for id := range found.foreign {
		out = append(out, runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume, Foreign: true})
	}
	return out, nil
}

// volumeState is the state of all docker-volume homes.
type volumeState struct {
	homes   map[workspace.ID]string            // → claim
	labels  map[workspace.ID]map[string]string // of the homes
	seeds   map[workspace.ID]holding           // finished seed containers
	holders map[workspace.ID]holding
	ended   map[string]bool // ids of restore jobs that have ended
	settled map[workspace.ID][]record
	markers map[workspace.ID][]record
	// removing holds the homes whose removal has begun; all other records of them
	// are ignored.
	removing map[workspace.ID][]record
	foreign  map[workspace.ID]bool // volumes with a home's name but no installation label
}

// holding is a container that holds a home, and the claim of the home it was
// created for.
type holding struct{ container, claim string }

// record is an empty volume whose labels record something about a home.
type record struct {
	name  string
	claim string // of the home
	key   string // archive_key of the completed restore; empty: none
	proof string // ID of the container that proves the record
}

// The names of seed containers, holders and restore jobs. Docker cannot filter by
// alternatives of a label.
const holdingNames = "^/?codehub-(seed|home|restore)-"

// listHomes reads the state of all homes, or of one workspace's.
func (h *Homes) listHomes(ctx context.Context, only workspace.ID) (volumeState, error) {
	s := volumeState{
		homes:    map[workspace.ID]string{},
		labels:   map[workspace.ID]map[string]string{},
		seeds:    map[workspace.ID]holding{},
		holders:  map[workspace.ID]holding{},
		ended:    map[string]bool{},
		settled:  map[workspace.ID][]record{},
		markers:  map[workspace.ID][]record{},
		removing: map[workspace.ID][]record{},
		foreign:  map[workspace.ID]bool{},
	}
	filter, names := h.Filter(""), "^ws-"
	if only != "" {
		filter, names = filter.Add("label", engine.LabelWorkspace+"="+string(only)), names+string(only)+"-"
	}
	// Filter by name: a volume without labels may be in the way of a home, and
	// Docker cannot combine alternative filters.
	volumes, err := h.API.VolumeList(ctx, client.VolumeListOptions{Filters: client.Filters{}.Add("name", names)})
	if err != nil {
		return s, engine.WrapError(ctx, "list volumes", err)
	}
	// List containers after the volumes, so that a record is not believed because
	// of a container that was removed before it was made.
	containers, err := h.API.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: filter.Clone().Add("name", holdingNames),
	})
	if err != nil {
		return s, engine.WrapError(ctx, "list containers that hold homes", err)
	}
	for _, c := range containers.Items {
		id := workspace.ID(c.Labels[engine.LabelWorkspace])
		switch c.Labels[engine.LabelRole] {
		case engine.RoleSeed:
			done, err := h.isCreated(ctx, c.ID)
			if err != nil {
				return s, err
			}
			if done {
				s.seeds[id] = holding{c.ID, c.Labels[engine.LabelClaim]}
			}
		case engine.RoleHolder:
			s.holders[id] = holding{c.ID, c.Labels[engine.LabelClaim]}
		case engine.RoleJob:
			s.ended[c.ID] = engine.StateOf(c.State) == runtime.ContainerExited
		}
	}
	for _, v := range volumes.Items {
		if id, ok := foreignHome(v.Name, v.Labels); ok {
			s.foreign[id] = true
		}
		if v.Labels[engine.LabelInstallation] != h.Installation {
			continue
		}
		id := workspace.ID(v.Labels[engine.LabelWorkspace])
		rec := record{name: v.Name, claim: v.Labels[engine.LabelClaim], key: v.Labels[engine.LabelKey], proof: v.Labels[engine.LabelProof]}
		switch {
		case v.Labels[engine.LabelRole] == engine.RoleHome && v.Name == id.VolumeName():
			s.homes[id], s.labels[id] = rec.claim, v.Labels
		case v.Labels[engine.LabelRole] == engine.RoleSettled && (v.Name == engine.SettledName(id, rec.claim) || v.Name == engine.EarlierSettledName(id)):
			s.settled[id] = append(s.settled[id], rec)
		case v.Labels[engine.LabelRole] == engine.RoleRestored:
			s.markers[id] = append(s.markers[id], rec)
		case v.Labels[engine.LabelRole] == engine.RoleRemoving && v.Name == engine.RemovingName(id, rec.claim, rec.proof):
			s.removing[id] = append(s.removing[id], rec)
		}
	}
	return s, nil
}

// foreignHome returns the workspace whose home has the volume's name, if the volume
// has no installation label.
func foreignHome(name string, labels map[string]string) (workspace.ID, bool) {
	_, labelled := labels[engine.LabelInstallation]
	id := workspace.ID(strings.TrimSuffix(strings.TrimPrefix(name, "ws-"), "-home"))
	return id, !labelled && workspace.ValidID(string(id)) && name == id.VolumeName()
}

// isCreated reports whether Docker has finished creating a listed container: only
// then can it be inspected.
func (h *Homes) isCreated(ctx context.Context, containerID string) (bool, error) {
	if _, known := h.createdSeeds.Load(containerID); known {
		return true, nil
	}
	_, err := h.API.ContainerInspect(ctx, containerID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, engine.WrapError(ctx, "inspect seed container", err)
	}
	h.createdSeeds.Store(containerID, nil)
	return true, nil
}

// removalBegun reports whether the removal of the home with this claim has begun.
func (h volumeState) removalBegun(id workspace.ID, claim string) bool {
	return len(h.removalsOf(id, claim)) > 0
}

// removalsOf returns the removal records of the home with this claim.
func (h volumeState) removalsOf(id workspace.ID, claim string) []record {
	return slices.DeleteFunc(slices.Clone(h.removing[id]), func(r record) bool { return r.claim != claim })
}

// settledOf returns the record that the home with this claim is live.
func (h volumeState) settledOf(id workspace.ID, claim string) (record, bool) {
	for _, rec := range h.settled[id] {
		if claim != "" && rec.claim == claim {
			return rec, true
		}
	}
	return record{}, false
}

func (h volumeState) isSettled(id workspace.ID, claim string) bool {
	_, ok := h.settledOf(id, claim)
	return ok
}

// settledKey is the archive in that record; empty: none.
func (h volumeState) settledKey(id workspace.ID, claim string) string {
	rec, _ := h.settledOf(id, claim)
	return rec.key
}

// live reports whether the home is known to be live: a holder holds it, or it is
// recorded as settled.
func (h volumeState) live(id workspace.ID) bool {
	claim := h.homes[id]
	return claim != "" && !h.removalBegun(id, claim) && (h.isSettled(id, claim) || h.holders[id].claim == claim)
}

// marker returns the record of the completed restore, if the container that proves
// it still holds the volume.
func (h volumeState) marker(id workspace.ID) (record, bool) {
	claim := h.homes[id]
	if h.removalBegun(id, claim) {
		return record{}, false
	}
	for _, m := range h.markers[id] {
		if m.claim == claim && (h.ended[m.proof] || h.seeds[id] == holding{m.proof, claim}) {
			return m, true
		}
	}
	return record{}, false
}

func (h volumeState) volume(id workspace.ID) runtime.Volume {
	v := runtime.Volume{
		Workspace: id, Storage: workspace.StorageDockerVolume, Claim: h.homes[id],
		Owner: h.labels[id][engine.LabelOwner], Name: h.labels[id][engine.LabelName],
	}
	if h.removalBegun(id, v.Claim) {
		v.Removing = true
		return v
	}
	v.Held = v.Claim != "" && h.holders[id].claim == v.Claim
	if s, ok := h.settledOf(id, v.Claim); ok {
		v.Marker, v.Seeded = s.key, s.key == ""
		return v
	}
	if m, ok := h.marker(id); ok {
		v.Marker = m.key
		return v
	}
	v.Seeded = v.Claim != "" && h.seeds[id].claim == v.Claim
	return v
}

// discard removes a container that was not used.
func (h *Homes) discard(ctx context.Context, id string) error {
	err := h.Discard(ctx, id)
	if err == nil {
		h.createdSeeds.Delete(id)
	}
	return err
}
