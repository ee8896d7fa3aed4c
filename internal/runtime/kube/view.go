package kube

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watched is one kind of object of the namespace, T or *T, as this process knows it from a
// watch, so that an observation costs the cluster no request. A list asks the cluster itself
// if the watch stays interrupted, may have missed something, or does not bring in time what this
// process has written. So a list is never older than a write of this process. It fails while the
// watch is interrupted and the cluster does not respond.
type watched[T any] struct {
	informer cache.SharedIndexInformer
	ask      func(context.Context) ([]*T, string, error) // lists in the cluster; also the list's version
	arrivals arrivals

	mu      sync.Mutex
	least   uint64    // the version that the watch must have reached
	open    bool      // the watch is not interrupted
	reopens bool      // the watch is interrupted, and client-go is opening it again
	ended   time.Time // when it was interrupted
	brought time.Time // when it brought something last; zero if it was never open
	missed  uint64    // how many times it may have missed something
	covered uint64    // how many of these times a list has made up for: least is at or after its version
}

// A busy API server ends watches. client-go opens most of them again at once. Calls wait for
// that: if each sent a request of its own instead, hundreds would arrive at the same time.
const (
	// catchUp is how long calls wait for an open watch that brings nothing. If a watch opens
	// again later than this after its last event, the next list asks the cluster.
	catchUp = time.Second
	// waitAtMost is how long calls wait in all for a watch that brings other things, and how
	// long they wait for one to be opened again.
	waitAtMost = 10 * time.Second
)

// lister is the part of a typed client that watched needs.
type lister[L k8sruntime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// newWatched returns the watch of the objects that a client lists; items returns those of a
// list.
func newWatched[T any, L k8sruntime.Object](client lister[L], kind k8sruntime.Object, items func(L) []T) *watched[T] {
	w := &watched[T]{}
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (k8sruntime.Object, error) {
			w.begins(true)
			found, err := client.List(ctx, o)
			if err != nil {
				w.refused()
			}
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w.begins(o.SendInitialEvents != nil)
			events, err := client.Watch(ctx, o)
			if err != nil {
				w.refused()
				return nil, err
			}
			w.opened()
			return &noticed{Interface: events, brings: w.brings, ended: func(again bool) { w.interrupted(again && ctx.Err() == nil) }}, nil
		},
	}
	w.informer = cache.NewSharedIndexInformer(list, kind, 0, cache.Indexers{byWorkspace: workspaceLabel})
	w.ask = func(ctx context.Context) ([]*T, string, error) {
		found, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, "", err
		}
		about, err := meta.ListAccessor(found)
		if err != nil {
			return nil, "", err
		}
		all := items(found)
		out := make([]*T, len(all))
		for i := range all {
			out[i] = &all[i]
		}
		return out, about.GetResourceVersion(), nil
	}
	return w
}

// byWorkspace is the index of objects by the workspace that they belong to.
const byWorkspace = "workspace"

func workspaceLabel(o any) ([]string, error) {
	about, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	if id := about.GetLabels()[labelWorkspace]; id != "" {
		return []string{id}, nil
	}
	return nil, nil
}

// noticed is a watch whose events and end are noticed.
type noticed struct {
	watch.Interface
	brings func()
	ended  func(again bool) // again: client-go opens the next watch without a pause

	once   sync.Once
	events chan watch.Event
}

// ResultChan implements watch.Interface.
func (n *noticed) ResultChan() <-chan watch.Event {
	n.once.Do(func() {
		n.events = make(chan watch.Event)
		go func() {
			defer close(n.events)
			opened, empty, failed := time.Now(), true, false
			// It pauses after an error, and after a watch that brought nothing and was short.
			defer func() { n.ended(!failed && (!empty || time.Since(opened) >= time.Second)) }()
			for e := range n.Interface.ResultChan() {
				empty, failed = false, e.Type == watch.Error
				if !failed {
					n.brings()
				}
				n.events <- e
			}
		}()
	})
	return n.events
}

// Stop implements watch.Interface.
func (n *noticed) Stop() {
	n.Interface.Stop()
	for range n.ResultChan() { // its sender must not wait for a reader that is gone
	}
}

// begins is called before a request that opens the watch. With whole, the request asks for all
// objects. The API server may answer from its cache, without the latest writes, so the next list
// asks the cluster.
func (w *watched[T]) begins(whole bool) {
	w.mu.Lock()
	w.reopens = !w.open && !w.brought.IsZero()
	if whole && !w.brought.IsZero() {
		w.missed++
	}
	w.mu.Unlock()
}

// refused is called when a request that opens the watch has failed.
func (w *watched[T]) refused() {
	w.mu.Lock()
	w.reopens = false
	w.mu.Unlock()
	w.arrivals.tellAll()
}

func (w *watched[T]) opened() {
	w.mu.Lock()
	if !w.brought.IsZero() && time.Since(w.brought) > catchUp {
		w.missed++
	}
	w.open, w.reopens, w.brought = true, false, time.Now()
	w.mu.Unlock()
	w.arrivals.tellAll()
}

func (w *watched[T]) brings() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.brought = time.Now()
}

func (w *watched[T]) interrupted(again bool) {
	w.mu.Lock()
	w.open, w.reopens, w.ended = false, again, time.Now()
	w.mu.Unlock()
	w.arrivals.tellAll()
}

// wrote records the version of an object that this process has written.
func (w *watched[T]) wrote(o metav1.Object) {
	n, ok := versionOf(o)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.least = max(w.least, n)
}

// list returns all objects of the kind. They must not be changed.
func (w *watched[T]) list(ctx context.Context) ([]*T, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.current(ctx) {
		return w.known(), nil
	}
	w.mu.Lock()
	missed, least := w.missed, w.least
	w.mu.Unlock()
	at, _ := w.version()
	list, version, err := w.ask(ctx)
	if err != nil {
		return nil, err
	}
	// A version before that of the watch is of a cluster that was restored from a backup: the watch
	// does not show it before it has begun with all objects.
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && n >= at {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case w.covered < missed: // once the watch has this version, it has what it missed
			w.covered, w.least = missed, max(w.least, n)
		case n < least && w.least == least: // the cluster was restored, and the watch shows it
			w.least = n
		}
	}
	return list, nil
}

func (w *watched[T]) known() []*T {
	var out []*T
	for _, o := range w.informer.GetStore().List() {
		out = append(out, any(o).(*T))
	}
	return out
}

// refresh makes lists include everything that others have written until now.
func (w *watched[T]) refresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed++
}

// current reports whether the watch has reached what a list must include. It waits for that, but
// not for what is written meanwhile: others write all the time.
func (w *watched[T]) current(ctx context.Context) bool {
	least := w.mustHave()
	return w.catchesUp(ctx, nil, func() (now, hope bool) { return w.includes(least) })
}

// catchesUp waits until look returns now. It gives up when look returns no hope, when an open watch
// has brought nothing for catchUp, after waitAtMost, or when half of the time until ctx's deadline
// is over. It looks again after each value of changed; without changed, every few milliseconds.
func (w *watched[T]) catchesUp(ctx context.Context, changed <-chan struct{}, look func() (now, hope bool)) bool {
	last := time.Now().Add(waitAtMost)
	if at, ok := ctx.Deadline(); ok {
		last = time.Now().Add(min(waitAtMost, time.Until(at)/2))
	}
	end := time.Now().Add(catchUp)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		now, hope := look()
		if now || !hope {
			return now
		}
		_, soon := w.isOpen()
		w.mu.Lock()
		brought := w.brought
		w.mu.Unlock()
		if soon {
			brought = time.Now()
		}
		if next := brought.Add(catchUp); next.After(end) {
			end = next
		}
		left := min(time.Until(end), time.Until(last))
		if left <= 0 {
			return false
		}
		if changed == nil {
			left = min(left, pause)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-time.After(left):
		}
	}
}

// get returns the object with a name as the watch has it, or nil. It may be a moment old.
func (w *watched[T]) get(namespace, name string) *T {
	if !w.follows() {
		return nil
	}
	return w.stored(namespace, name)
}

// stored returns the object with a name as the store has it, however old that is, or nil. It
// must not be changed.
func (w *watched[T]) stored(namespace, name string) *T {
	o, ok, err := w.informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	return any(o).(*T)
}

// follows reports whether the watch is open and not behind what a list must include.
func (w *watched[T]) follows() bool {
	now, _ := w.isCurrent()
	return now
}

func (w *watched[T]) isCurrent() (now, hope bool) { return w.includes(w.mustHave()) }

func (w *watched[T]) mustHave() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.least
}

// includes reports whether the watch is open, has missed nothing, and has brought everything up to
// a version. hope reports whether waiting can help.
func (w *watched[T]) includes(version uint64) (now, hope bool) {
	w.mu.Lock()
	missed := w.missed > w.covered
	w.mu.Unlock()
	if open, soon := w.isOpen(); missed || !open {
		return false, soon && !missed
	}
	return w.has(version)
}

// has reports whether the store includes everything up to a version, and whether it will as
// long as the watch goes on.
func (w *watched[T]) has(version uint64) (now, hope bool) {
	at, ok := w.version()
	return ok && at >= version, ok
}

// version returns up to which version the store includes everything; false if it has none yet.
func (w *watched[T]) version() (uint64, bool) {
	at, err := strconv.ParseUint(w.informer.GetStore().LastStoreSyncResourceVersion(), 10, 64)
	return at, err == nil
}

// awaitGone waits until the watch has brought the removal of an object.
func (w *watched[T]) awaitGone(ctx context.Context, o metav1.Object) {
	key := o.GetNamespace() + "/" + o.GetName()
	changed, done := w.arrivals.expect(key)
	defer done()
	gone := w.catchesUp(ctx, changed, func() (gone, hope bool) {
		if now := w.stored(o.GetNamespace(), o.GetName()); now != nil {
			return any(now).(metav1.Object).GetUID() != o.GetUID(), true
		}
		version, ok := versionOf(o)
		if !ok {
			return false, false
		}
		return w.has(version) // before, it may lack the creation
	})
	if !gone {
		w.refresh()
	}
}

// Refresh makes lists include everything that other servers have written until now. A server
// that begins to lead calls it: its watches may be behind the leader before.
func (r *Runtime) Refresh() {
	r.podView.refresh()
	r.homeView.refresh()
	r.recordView.refresh()
	r.policyView.refresh()
}

// Run watches the namespace until ctx ends. It also repeats a dry run of the settings that had
// no result.
func (r *Runtime) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{r.podView.informer, r.homeView.informer, r.recordView.informer, r.policyView.informer} {
		if err := informer.SetTransform(withoutManagedFields); err != nil {
			return err
		}
		watches.Go(func() { informer.RunWithContext(ctx) })
	}
	watches.Go(func() { r.tryLater(ctx) })
	watches.Wait()
	return nil
}

// withoutManagedFields drops the part of an object that codehub never reads and that takes
// most of its memory.
func withoutManagedFields(o any) (any, error) {
	if about, err := meta.Accessor(o); err == nil {
		about.SetManagedFields(nil)
	}
	return o, nil
}

func podItems(l *corev1.PodList) []corev1.Pod { return l.Items }

func claimItems(l *corev1.PersistentVolumeClaimList) []corev1.PersistentVolumeClaim { return l.Items }

func recordItems(l *corev1.ConfigMapList) []corev1.ConfigMap { return l.Items }

func policyItems(l *networkingv1.NetworkPolicyList) []networkingv1.NetworkPolicy { return l.Items }
