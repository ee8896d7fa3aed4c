package kube

import (
	"context"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"codehub/internal/workspace"
)

// arrivals tells calls that wait for one object that the watch of all has brought something
// of it, so that a thousand starts at once need no watch each.
type arrivals struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]struct{} // by the key of the object
}

// expect returns a channel that has a value after each change of the object with a key, and
// when the watch is interrupted, is open again, or cannot be opened. One value may stand for
// several changes.
func (a *arrivals) expect(key string) (changed <-chan struct{}, done func()) {
	c := make(chan struct{}, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = map[string]map[chan struct{}]struct{}{}
	}
	if a.waiting[key] == nil {
		a.waiting[key] = map[chan struct{}]struct{}{}
	}
	a.waiting[key][c] = struct{}{}
	return c, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if delete(a.waiting[key], c); len(a.waiting[key]) == 0 {
			delete(a.waiting, key)
		}
	}
}

func (a *arrivals) tell(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.waiting[key] {
		notify(c)
	}
}

func (a *arrivals) tellAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, waiting := range a.waiting {
		for c := range waiting {
			notify(c)
		}
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has one already
	}
}

// handler tells of all changes that an informer brings.
func (a *arrivals) handler() cache.ResourceEventHandler {
	tell := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			a.tell(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, o any) { tell(o) }, DeleteFunc: tell}
}

// reached reports whether the watch is open and has brought everything up to the version of
// an object that the cluster has returned: also what others have written before it. hope reports
// whether waiting can help.
func (w *watched[T]) reached(o metav1.Object) (now, hope bool) {
	version, ok := versionOf(o)
	if !ok {
		return false, false
	}
	if open, soon := w.isOpen(); !open {
		return false, soon
	}
	return w.has(version)
}

// isOpen reports whether the watch is open. If it is not, soon reports whether client-go is opening
// it again, which has not taken long yet.
func (w *watched[T]) isOpen() (open, soon bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.informer.HasSynced() {
		return false, false
	}
	return w.open, w.reopens && time.Since(w.ended) < waitAtMost
}

// of returns the objects of a workspace once the watch has reached the version of o, which the
// cluster has returned; false if it does not reach it. They must not be changed.
func (w *watched[T]) of(ctx context.Context, id workspace.ID, o metav1.Object) ([]*T, bool) {
	changed, done := w.arrivals.expect(o.GetNamespace() + "/" + o.GetName())
	defer done()
	if !w.catchesUp(ctx, changed, func() (bool, bool) { return w.reached(o) }) {
		return nil, false
	}
	found, err := w.informer.GetIndexer().ByIndex(byWorkspace, string(id))
	if err != nil {
		return nil, false
	}
	out := make([]*T, len(found))
	for i := range found {
		out[i] = found[i].(*T)
	}
	return out, true
}

// laterThan reports whether an object has a later version than another one.
func laterThan(o, than metav1.Object) bool {
	a, ok := versionOf(o)
	b, known := versionOf(than)
	return ok && known && a > b
}

func versionOf(o metav1.Object) (uint64, bool) {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return n, err == nil
}
