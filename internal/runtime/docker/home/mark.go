package home

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// A mark is an empty volume with labels. Each has a unique name, so that storing
// one never overwrites another.

// Mark implements runtime.Runtime. It ignores volumes with incomplete labels, since
// Docker may lose labels in a power cut.
func (h *Homes) Mark(ctx context.Context) (workspace.Mark, bool, error) {
	marks, err := h.marks(ctx)
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
func (h *Homes) SetMark(ctx context.Context, m workspace.Mark) error {
	name := h.Names.Mark(m.ID)
	labels := h.Labels(engine.RoleMark, "", "")
	labels[engine.LabelMark] = m.ID
	labels[engine.LabelSerial] = strconv.FormatInt(m.Serial, 10)
	labels[engine.LabelIdentity] = m.Identity
	labels[engine.LabelAt] = m.At.UTC().Format(time.RFC3339Nano)
	if _, err := h.API.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels}); err != nil {
		return engine.WrapError(ctx, "create volume", err)
	}
	// The response to the creation is not sufficient: Docker also returns it for an
	// existing volume, without its labels.
	marks, err := h.marks(ctx)
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
		if _, err := h.API.VolumeRemove(ctx, other, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
			return engine.WrapError(ctx, "remove volume", err)
		}
	}
	return nil
}

// marks lists the marks of this installation by volume name.
func (h *Homes) marks(ctx context.Context) (map[string]workspace.Mark, error) {
	list, err := h.API.VolumeList(ctx, client.VolumeListOptions{Filters: h.Filter(engine.RoleMark)})
	if err != nil {
		return nil, engine.WrapError(ctx, "list volumes", err)
	}
	out := make(map[string]workspace.Mark, len(list.Items))
	for _, v := range list.Items {
		m := workspace.Mark{ID: v.Labels[engine.LabelMark], Identity: v.Labels[engine.LabelIdentity]}
		if m.ID == "" || v.Name != h.Names.Mark(m.ID) {
			continue
		}
		if m.Serial, err = strconv.ParseInt(v.Labels[engine.LabelSerial], 10, 64); err != nil {
			continue
		}
		m.At, _ = time.Parse(time.RFC3339Nano, v.Labels[engine.LabelAt])
		out[v.Name] = m
	}
	return out, nil
}
