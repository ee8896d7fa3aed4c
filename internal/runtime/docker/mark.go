package docker

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A mark is an empty volume with labels. Each has a unique name, so that storing
// one never overwrites another.

// Mark implements runtime.Runtime. It ignores volumes with incomplete labels, since
// Docker may lose labels in a power cut.
func (r *Runtime) Mark(ctx context.Context) (workspace.Mark, bool, error) {
	marks, err := r.marks(ctx)
	if err != nil {
		return workspace.Mark{}, false, err
	}
	var newest workspace.Mark
	for _, m := range marks {
		if newest.ID == "" || newer(m, newest) {
			newest = m
		}
	}
	return newest, newest.ID != "", nil
}

// newer orders marks by serial, then by ID.
func newer(a, b workspace.Mark) bool {
	return a.Serial > b.Serial || a.Serial == b.Serial && a.ID > b.ID
}

// SetMark implements runtime.Runtime.
func (r *Runtime) SetMark(ctx context.Context, m workspace.Mark) error {
	name := r.names.mark(m.ID)
	labels := r.labels(roleMark, "", "")
	labels[labelMark] = m.ID
	labels[labelSerial] = strconv.FormatInt(m.Serial, 10)
	labels[labelIdentity] = m.Identity
	labels[labelAt] = m.At.UTC().Format(time.RFC3339Nano)
	if _, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels}); err != nil {
		return wrapError(ctx, "create volume", err)
	}
	// The response to the creation is not sufficient: Docker also returns it for an
	// existing volume, without its labels.
	marks, err := r.marks(ctx)
	if err != nil {
		return err
	}
	if got, ok := marks[name]; !ok || got.ID != m.ID {
		return fmt.Errorf("volume %s: %w", name, runtime.ErrConflict)
	}
	for other, o := range marks {
		if o.Serial >= m.Serial {
			continue
		}
		if _, err := r.api.VolumeRemove(ctx, other, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
			return wrapError(ctx, "remove volume", err)
		}
	}
	return nil
}

// marks lists the marks of this installation by volume name.
func (r *Runtime) marks(ctx context.Context) (map[string]workspace.Mark, error) {
	list, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: r.filter(roleMark)})
	if err != nil {
		return nil, wrapError(ctx, "list volumes", err)
	}
	out := make(map[string]workspace.Mark, len(list.Items))
	for _, v := range list.Items {
		m := workspace.Mark{ID: v.Labels[labelMark], Identity: v.Labels[labelIdentity]}
		if m.ID == "" || v.Name != r.names.mark(m.ID) {
			continue
		}
		if m.Serial, err = strconv.ParseInt(v.Labels[labelSerial], 10, 64); err != nil {
			continue
		}
		m.At, _ = time.Parse(time.RFC3339Nano, v.Labels[labelAt])
		out[v.Name] = m
	}
	return out, nil
}
