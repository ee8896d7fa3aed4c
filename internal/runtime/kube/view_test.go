package kube

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"codehub/internal/harness"
)

// behind has Pods that its watch never brings.
type behind struct {
	mu   sync.Mutex
	list corev1.PodList
}

func (b *behind) set(version string, pods ...corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: pods}
}

func (b *behind) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list.DeepCopy(), nil
}

func (b *behind) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(1, false)
	// The list is complete with its first version.
	w.Action(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	return w, nil
}

// A server that begins to lead asks the cluster, however far behind its watch is.
func TestRefreshAsksCluster(t *testing.T) {
	t.Parallel()
	source := &behind{}
	source.set("1")
	w := newWatched(source, &corev1.Pod{}, podItems)
	ctx, cancel := context.WithCancel(t.Context())
	var watches sync.WaitGroup
	watches.Go(func() { w.informer.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); watches.Wait() })
	count := func() int {
		t.Helper()
		list, err := w.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	harness.Eventually(t, "the watch is open", func() bool { now, _ := w.isCurrent(); return now })
	source.set("5", corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: namespace, ResourceVersion: "5"}})
	if n := count(); n != 0 {
		t.Fatalf("the watch is not behind: %d Pods", n)
	}
	w.refresh()
	for range 2 { // the watch has not caught up afterwards either
		if n := count(); n != 1 {
			t.Errorf("%d Pods, want that of the leader before", n)
		}
	}
}
