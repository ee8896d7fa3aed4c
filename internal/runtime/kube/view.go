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
// while the watch is interrupted, or while it has not brought yet what this process has
// written: so a list is never older than a write, and it fails while the cluster is away.
type watched[T any] struct {
	informer cache.SharedIndexInformer
	ask      func(context.Context) ([]*T, string, error) // lists in the cluster; also the list's version
	arrivals arrivals

	mu     sync.Mutex
	least  uint64 // the version that the watch must have reached
	open   bool   // the watch is not interrupted
	missed bool   // it was, and least does not include yet what was missed
}

// catchUp is how long a list waits for the watch.
const catchUp = time.Second

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
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := client.Watch(ctx, o)
			if err != nil {
				w.interrupted()
				return nil, err
			}
			w.opened()
			return &noticed{Interface: events, ended: w.interrupted}, nil
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

// noticed is a watch whose end is noticed.
type noticed struct {
	watch.Interface
	ended func()

	once   sync.Once
	events chan watch.Event
}

// ResultChan implements watch.Interface.
func (n *noticed) ResultChan() <-chan watch.Event {
	n.once.Do(func() {
		n.events = make(chan watch.Event)
		go func() {
			defer close(n.events)
			defer n.ended()
			for e := range n.Interface.ResultChan() {
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

func (w *watched[T]) opened() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
}

func (w *watched[T]) interrupted() {
	w.mu.Lock()
	w.open, w.missed = false, true
	w.mu.Unlock()
	w.arrivals.tellAll()
}

// wrote records the version of an object that this process has written.
func (w *watched[T]) wrote(o metav1.Object) { w.atLeast(o.GetResourceVersion()) }

func (w *watched[T]) atLeast(version string) {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
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
	missed := w.missed
	w.missed = missed && !w.open
	w.mu.Unlock()
	list, version, err := w.ask(ctx)
	switch {
	case err != nil && missed:
		w.mu.Lock()
		w.missed = true
		w.mu.Unlock()
	case missed: // from here on the watch has what it missed
		w.atLeast(version)
	}
	return list, err
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
	w.missed = true
}

// current reports whether the watch has reached what a list must include. It waits a little
// for that, but not for what is written meanwhile: others write all the time.
func (w *watched[T]) current(ctx context.Context) bool {
	least := w.mustHave()
	return catchesUp(ctx, func() (now, hope bool) { return w.includes(least) })
}

// catchesUp waits a little until now is true, as long as there is hope.
func catchesUp(ctx context.Context, look func() (now, hope bool)) bool {
	for end := time.Now().Add(catchUp); ; {
		if now, hope := look(); now || !hope || time.Now().After(end) {
			return now
		}
		if !pauseBetweenLooks(ctx) {
			return false
		}
	}
}

// pauseBetweenLooks waits a moment for the watch; false if ctx has ended.
func pauseBetweenLooks(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(2 * time.Millisecond):
		return true
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

// includes reports whether the watch is not interrupted, and lists include everything up to a
// version; hope, that they will.
func (w *watched[T]) includes(version uint64) (now, hope bool) {
	w.mu.Lock()
	usable := w.open && !w.missed && w.informer.HasSynced()
	w.mu.Unlock()
	if !usable {
		return false, false
	}
	return w.has(version)
}

// has reports whether the store includes everything up to a version, and whether it will as
// long as the watch goes on.
func (w *watched[T]) has(version uint64) (now, hope bool) {
	at, err := strconv.ParseUint(w.informer.GetStore().LastStoreSyncResourceVersion(), 10, 64)
	return err == nil && at >= version, err == nil
}

// awaitGone waits until the watch has brought the removal of an object.
func (w *watched[T]) awaitGone(ctx context.Context, o metav1.Object) {
	key := o.GetNamespace() + "/" + o.GetName()
	for end := time.Now().Add(catchUp); time.Now().Before(end); {
		known, there, err := w.informer.GetStore().GetByKey(key)
		if found, ok := known.(metav1.Object); err != nil || !there || !ok || found.GetUID() != o.GetUID() {
			return
		}
		if !pauseBetweenLooks(ctx) {
			break
		}
	}
	w.refresh()
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
