package reconcile

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

const (
	// firstImageCheck is the time from the begin of a term to its first check.
	firstImageCheck = time.Minute
	// maxImageChecks limits the checks of one round, and imageCheckTimeout each of them:
	// users choose the registries, which may be slow.
	maxImageChecks    = 100
	imageCheckTimeout = 30 * time.Second
)

// choiceOf returns which image a start of the workspace uses.
func choiceOf(row workspace.Workspace) runtime.ImageChoice {
	c := runtime.ImageChoice{Generation: row.ImageGeneration}
	if pin := lifecycle.PinOf(row); pin != nil {
		c.Pinned = runtime.Image{ID: pin.ID, Digest: pin.Digest}
	} else {
		c.Pull = row.ImagePull
	}
	return c
}

// newestImages is what is known of the images that references name now.
type newestImages struct {
	mu      sync.Mutex
	known   map[string]newestImage // by reference
	changed bool                   // since takeChanged
}

type newestImage struct {
	image     lifecycle.Newest
	checkedAt time.Time
}

func (n *newestImages) of(ref string) lifecycle.Newest {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known[ref].image
}

// forget drops what is known of a reference: it has just been pulled.
func (n *newestImages) forget(ref string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, ref)
}

func (n *newestImages) takeChanged() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := n.changed
	n.changed = false
	return changed
}

func (n *newestImages) set(ref string, image lifecycle.Newest, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = n.changed || n.known[ref].image != image
	n.known[ref] = newestImage{image, at}
}

// due returns the references to check in this round, the longest unchecked first, and
// forgets those that are not used any more.
func (n *newestImages) due(used []postgres.UsedImage) []postgres.UsedImage {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := make(map[string]newestImage, len(used))
	for _, u := range used {
		if k, ok := n.known[u.Ref]; ok {
			known[u.Ref] = k
		}
	}
	n.known = known
	slices.SortStableFunc(used, func(a, b postgres.UsedImage) int {
		return cmp.Or(known[a.Ref].checkedAt.Compare(known[b.Ref].checkedAt), cmp.Compare(a.Ref, b.Ref))
	})
	return used[:min(len(used), maxImageChecks)]
}

// watchImages looks for newer images until ctx ends. Nothing is pulled.
func (t *term) watchImages(ctx context.Context) {
	every := t.cfg.ImageCheckInterval
	if every <= 0 {
		return
	}
	for wait := min(every, firstImageCheck); t.awaitImageCheck(ctx, wait) == nil; wait = every {
		if err := t.checkImages(ctx); err != nil && ctx.Err() == nil {
			t.cfg.Log.Warn("image check failed", "err", err)
		}
	}
}

// awaitImageCheck waits for d, or until CheckImages is called or ctx ends.
func (t *term) awaitImageCheck(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.imageCheck:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (t *term) checkImages(ctx context.Context) error {
	var used []postgres.UsedImage
	err := t.inSession(ctx, func(ctx context.Context) (err error) {
		used, err = t.rows.UsedImages(ctx)
		return err
	})
	if err != nil {
		return err
	}
	away := map[string]bool{} // registries that did not respond in this round
	for _, u := range t.newest.due(used) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if t.cfg.Images.Allows(u.Ref, "") { // no registry has one that was built here for a user
			t.checkImage(ctx, u, away)
		}
	}
	t.newest.mu.Lock()
	changed := t.newest.changed
	t.newest.mu.Unlock()
	if changed {
		t.Wake()
	}
	return nil
}

// checkImage asks the registry, and only this machine if the registry gives no answer and
// never did.
func (t *term) checkImage(ctx context.Context, u postgres.UsedImage, away map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, imageCheckTimeout)
	defer cancel()
	registry := imageref.Registry(u.Ref)
	ask := u.Remote && !away[registry]
	found, err := t.cfg.Runtime.Newest(ctx, u.Ref, ask)
	if err != nil && ask {
		t.cfg.Log.Debug("registry not asked for a newer image", "image", u.Ref, "err", err)
		if ctx.Err() != nil {
			away[registry] = true
			return
		}
		ask = false
		found, err = t.cfg.Runtime.Newest(ctx, u.Ref, false)
	}
	if err != nil || u.Remote && !ask && t.newest.of(u.Ref) != (lifecycle.Newest{}) {
		return
	}
	t.newest.set(u.Ref, lifecycle.Newest{ID: found.ID, Digest: found.Digest}, time.Now())
}

// recordImage records which image was used, if it is another one than was asked for.
func (t *term) recordImage(ctx context.Context, row workspace.Workspace, k runtime.Container) {
	if lifecycle.PinOf(row) == nil {
		t.newest.forget(row.ImageRef)
	}
	if k.ImageNote == "" {
		return
	}
	pin := workspace.ImagePin{Ref: row.ImageRef, ID: k.ImageID, Digest: k.ImageDigest, Generation: k.ImageGeneration, Note: k.ImageNote}
	err := t.inSession(ctx, func(ctx context.Context) error { return t.rows.RecordImage(ctx, row.ID, pin) })
	if err != nil && ctx.Err() == nil {
		t.cfg.Log.Warn("record image failed", "workspace", row.ID, "err", err)
	}
}
