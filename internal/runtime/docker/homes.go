package docker

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Volumes implements runtime.Runtime.
func (r *Runtime) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	found, err := r.lookAtHomes(ctx, "")
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Volume, 0, len(found.homes))
	for id := range found.homes {
		out = append(out, found.volume(id))
	}
	folders, err := r.folders()
	if err != nil {
		return nil, err
	}
	return append(out, folders...), nil
}

// homes is what the engine has of docker-volume homes.
type homes struct {
	homes   map[workspace.ID]string  // → claim
	seeds   map[workspace.ID]holding // the seed containers that have done their work
	holders map[workspace.ID]holding
	ended   map[string]bool // ids of restore jobs that have ended
	settled map[workspace.ID]record
	markers map[workspace.ID][]record
}

// holding is a container that holds a home, and the claim of the home that it
// was made for.
type holding struct{ container, claim string }

// record is a volume that says something about a home.
type record struct {
	name  string
	claim string // of the home
	key   string // archive_key that was restored; empty: none
	proof string // id of the container that proves it
}

// Seed containers, holders and restore jobs, by their names: the engine cannot
// select by one of several labels.
const holdingNames = "^/?codehub-(seed|home|restore)-"

// lookAtHomes asks the engine about all homes, or about one workspace's.
func (r *Runtime) lookAtHomes(ctx context.Context, only workspace.ID) (homes, error) {
	h := homes{
		homes:   map[workspace.ID]string{},
		seeds:   map[workspace.ID]holding{},
		holders: map[workspace.ID]holding{},
		ended:   map[string]bool{},
		settled: map[workspace.ID]record{},
		markers: map[workspace.ID][]record{},
	}
	filter := r.filter("")
	if only != "" {
		filter = filter.Add("label", labelWorkspace+"="+string(only))
	}
	volumes, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: filter})
	if err != nil {
		return h, failed(ctx, "list volumes", err)
	}
	// After the volumes, so that a marker is not believed for a container that
	// was gone before it was made.
	containers, err := r.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: filter.Clone().Add("name", holdingNames),
	})
	if err != nil {
		return h, failed(ctx, "list containers that hold homes", err)
	}
	for _, c := range containers.Items {
		id := workspace.ID(c.Labels[labelWorkspace])
		switch c.Labels[labelRole] {
		case roleSeed:
			done, err := r.isMade(ctx, c.ID)
			if err != nil {
				return h, err
			}
			if done {
				h.seeds[id] = holding{c.ID, c.Labels[labelClaim]}
			}
		case roleHolder:
			h.holders[id] = holding{c.ID, c.Labels[labelClaim]}
		case roleJob:
			h.ended[c.ID] = stateOf(c.State) == runtime.ContainerExited
		}
	}
	for _, v := range volumes.Items {
		id := workspace.ID(v.Labels[labelWorkspace])
		rec := record{name: v.Name, claim: v.Labels[labelClaim], key: v.Labels[labelKey], proof: v.Labels[labelProof]}
		switch {
		case v.Labels[labelRole] == roleHome && v.Name == id.VolumeName():
			h.homes[id] = rec.claim
		case v.Labels[labelRole] == roleSettled && v.Name == settledName(id):
			h.settled[id] = rec
		case v.Labels[labelRole] == roleRestored:
			h.markers[id] = append(h.markers[id], rec)
		}
	}
	return h, nil
}

// isMade reports whether the engine has come to the end of making a container
// that is in its list: it can be inspected only then. One that has been is
// made for good.
func (r *Runtime) isMade(ctx context.Context, containerID string) (bool, error) {
	if _, known := r.made.Load(containerID); known {
		return true, nil
	}
	_, err := r.api.ContainerInspect(ctx, containerID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, failed(ctx, "inspect seed container", err)
	}
	r.made.Store(containerID, nil)
	return true, nil
}

// live reports whether the home is known to be live: it is held for good, or
// recorded as settled.
func (h homes) live(id workspace.ID) bool {
	claim := h.homes[id]
	return claim != "" && (h.settled[id].claim == claim || h.holders[id].claim == claim)
}

// marker returns what was restored into the home, if that is known: the
// container that proves it still holds the volume.
func (h homes) marker(id workspace.ID) (record, bool) {
	claim := h.homes[id]
	for _, m := range h.markers[id] {
		if m.claim == claim && (h.ended[m.proof] || h.seeds[id] == holding{m.proof, claim}) {
			return m, true
		}
	}
	return record{}, false
}

func (h homes) volume(id workspace.ID) runtime.Volume {
	v := runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: h.homes[id]}
	v.Held = v.Claim != "" && h.holders[id].claim == v.Claim
	if s := h.settled[id]; s.claim == v.Claim && v.Claim != "" {
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
