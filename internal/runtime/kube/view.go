package kube

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// view is what this process knows of the namespace by watching it, so that observing costs
// the cluster no requests. A call that lists objects asks the cluster itself while a watch
// fails, or has not caught up with what this process wrote.
type view struct {
	factory informers.SharedInformerFactory
	pods    watched
	homes   watched
	marks   watched

	podLister  corelisters.PodNamespaceLister
	homeLister corelisters.PersistentVolumeClaimNamespaceLister
	markLister corelisters.ConfigMapNamespaceLister
}

// watched is one kind of object.
type watched struct {
	informer cache.SharedIndexInformer

	mu       sync.Mutex
	written  uint64 // the latest version that this process has written
	failed   bool   // the watch failed, and has brought nothing since
	failedAt string // the version that it had then
}

// catchUp is how long a call waits for a watch.
const catchUp = time.Second

func newView(api kubernetes.Interface, cfg Config) *view {
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(cfg.Namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = ours(cfg)
	}))
	core := factory.Core().V1()
	v := &view{factory: factory}
	v.pods.informer, v.podLister = core.Pods().Informer(), core.Pods().Lister().Pods(cfg.Namespace)
	v.homes.informer, v.homeLister = core.PersistentVolumeClaims().Informer(), core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(cfg.Namespace)
	v.marks.informer, v.markLister = core.ConfigMaps().Informer(), core.ConfigMaps().Lister().ConfigMaps(cfg.Namespace)
	return v
}

// ours selects the objects of this installation.
func ours(cfg Config) string { return labels.Set{labelInstallation: cfg.Installation}.String() }

// Run watches the namespace until ctx ends.
func (r *Runtime) Run(ctx context.Context) error {
	for _, w := range []*watched{&r.view.pods, &r.view.homes, &r.view.marks} {
		if err := w.informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) { w.fail() }); err != nil {
			return err
		}
	}
	r.view.factory.Start(ctx.Done())
	<-ctx.Done()
	r.view.factory.Shutdown()
	return nil
}

func (w *watched) fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed, w.failedAt = true, w.informer.LastSyncResourceVersion()
}

// wrote notes a version that this process has written.
func (w *watched) wrote(o metav1.Object) {
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = max(w.written, version)
}

// current reports whether the watch has brought what this process wrote, and waits a little
// for that.
func (w *watched) current(ctx context.Context) bool {
	for end := time.Now().Add(catchUp); ; {
		if now, hope := w.isCurrent(); now || !hope || time.Now().After(end) {
			return now
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (w *watched) isCurrent() (now, hope bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.informer.LastSyncResourceVersion()
	if w.failed && at == w.failedAt || !w.informer.HasSynced() {
		return false, false
	}
	w.failed = false
	version, err := strconv.ParseUint(at, 10, 64)
	return err == nil && version >= w.written, err == nil
}

// listPods returns the Pods of a role. They are not to be changed.
func (r *Runtime) listPods(ctx context.Context, role string) ([]*corev1.Pod, error) {
	if r.view.pods.current(ctx) {
		return r.view.podLister.List(labels.Set{labelRole: role}.AsSelector())
	}
	list, err := r.api.CoreV1().Pods(r.cfg.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours(r.cfg) + "," + labelRole + "=" + role})
	if err != nil {
		return nil, wrapError(ctx, "list Pods", err)
	}
	return pointers(list.Items), nil
}

// listHomes returns the claims of homes. They are not to be changed.
func (r *Runtime) listHomes(ctx context.Context) ([]*corev1.PersistentVolumeClaim, error) {
	if r.view.homes.current(ctx) {
		return r.view.homeLister.List(labels.Set{labelRole: roleHome}.AsSelector())
	}
	list, err := r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours(r.cfg) + "," + labelRole + "=" + roleHome})
	if err != nil {
		return nil, wrapError(ctx, "list persistent volume claims", err)
	}
	return pointers(list.Items), nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
