package adopt

import (
	"context"
	"fmt"
	"slices"

	"codehub/internal/archive"
	"codehub/internal/workspace"
)

// copy copies a workspace's archives into this installation's part of the
// bucket, oldest first, each with its .meta last. It skips archives that do not
// match their .meta; if the newest does not, that is an error.
func (r *run) copy(ctx context.Context, h home) (home, error) {
	out := home{id: h.id}
	for i, a := range slices.Backward(h.archives) {
		copied, err := r.copyOne(ctx, a)
		if err != nil && (i == 0 || ctx.Err() != nil) {
			return home{}, fmt.Errorf("copy %s: %w", a.Key, err)
		}
		if err != nil {
			r.report.Unusable = append(r.report.Unusable, Unusable{Key: a.Key, Why: err.Error()})
			continue
		}
		out.archives = append([]stored{copied}, out.archives...)
	}
	return out, nil
}

func (r *run) copyOne(ctx context.Context, a stored) (stored, error) {
	to := a
	to.Key = r.Own.Key(workspace.ID(a.meta.WorkspaceID), a.OpID)
	if o, err := r.Own.Store.Stat(ctx, archive.MetaKey(to.Key)); err == nil && o.Size > 0 {
		return to, nil // by an earlier run
	}
	in, err := r.Own.Store.Get(ctx, a.Key, 0)
	if err != nil {
		return to, err
	}
	defer in.Close()
	return to, r.Own.Receive(ctx, to.Key, a.meta, in)
}
