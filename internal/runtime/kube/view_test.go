package kube

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"codehub/internal/testing/harness"
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
	watching(t, w)
	count := func() int {
		t.Helper()
		list, err := w.list(t.Context())
		check(t, err)
		return len(list)
	}
	harness.Eventually(t, "the watch is open", w.follows)
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

// watching runs a watch until the test ends.
func watching(t *testing.T, w *watched[corev1.Pod]) {
	t.Helper()
	must(t)(w.informer.AddEventHandler(w.arrivals.handler()))
	ctx, cancel := context.WithCancel(context.Background())
	var watches sync.WaitGroup
	watches.Go(func() { w.informer.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); watches.Wait() })
}

func podAt(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, ResourceVersion: version, Labels: map[string]string{labelWorkspace: name}}}
}

// interruptible has a watch that the test ends; the next one opens, or fails, when the test says so.
type interruptible struct {
	behind
	opens   chan error
	watches chan *watch.FakeWatcher
}

func (e *interruptible) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	select {
	case err := <-e.opens:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w := watch.NewFakeWithChanSize(10, false)
	if o.SendInitialEvents != nil {
		w.Action(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	}
	e.watches <- w
	return w, nil
}

// newInterruptible returns a watch that is open and has brought the Pod a in version 2.
func newInterruptible(t *testing.T) (*interruptible, *watched[corev1.Pod], *watch.FakeWatcher) {
	t.Helper()
	source := &interruptible{opens: make(chan error, 1), watches: make(chan *watch.FakeWatcher, 1)}
	source.set("1")
	w := newWatched(source, &corev1.Pod{}, podItems)
	watching(t, w)
	source.opens <- nil
	first := <-source.watches
	harness.Eventually(t, "the watch is open", w.follows)
	first.Add(podAt("a", "2"))
	harness.Eventually(t, "the watch has the Pod", func() bool {
		found, ok := w.of(t.Context(), "a", podAt("a", "2"))
		return ok && len(found) == 1
	})
	return source, w, first
}

// While the watch is being opened again, calls wait instead of asking the cluster: hundreds of
// them would ask at the same time. If the watch cannot be opened, they stop waiting.
func TestWatchThatEndsIsAwaited(t *testing.T) {
	t.Parallel()
	source, w, first := newInterruptible(t)
	first.Stop()
	harness.Eventually(t, "the end is noticed", func() bool { open, soon := w.isOpen(); return !open && soon })
	if now, hope := w.reached(podAt("b", "3")); now || !hope {
		t.Errorf("while the watch is opened again: reached %v, hope %v", now, hope)
	}
	w.mu.Lock()
	w.brought = time.Now().Add(time.Hour) // the interruption counts as short also on a busy machine
	w.mu.Unlock()
	source.opens <- nil
	second := <-source.watches
	second.Add(podAt("b", "3"))
	if found, ok := w.of(t.Context(), "b", podAt("b", "3")); !ok || len(found) != 1 {
		t.Errorf("after the end: %v, %v", found, ok)
	}
	if list, err := w.list(t.Context()); err != nil || len(list) != 2 { // the source's list has none
		t.Errorf("the list after a short interruption: %v, %v", list, err)
	}
	second.Stop()
	source.opens <- errors.New("refused")
	if found, ok := w.of(t.Context(), "c", podAt("c", "4")); ok {
		t.Errorf("a watch that is not opened again has %v", found)
	}
	if open, soon := w.isOpen(); open || soon {
		t.Error("a watch that is not opened again is still expected")
	}
}

// After a long interruption, and after a list that the informer had to repeat, the first list
// asks the cluster, and the next ones wait until the watch has what that one had.
func TestWatchMayHaveMissedSomething(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*watched[corev1.Pod], *watch.FakeWatcher){
		"it was interrupted for long": func(w *watched[corev1.Pod], first *watch.FakeWatcher) {
			first.Stop()
			harness.Eventually(t, "the end is noticed", func() bool { open, _ := w.isOpen(); return !open })
			w.mu.Lock()
			w.brought = w.brought.Add(-time.Minute)
			w.mu.Unlock()
		},
		"its version is too old": func(w *watched[corev1.Pod], first *watch.FakeWatcher) {
			first.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, w, first := newInterruptible(t)
			end(w, first)
			source.opens <- nil
			second := <-source.watches
			harness.Eventually(t, "the watch is open", func() bool { open, _ := w.isOpen(); return open })
			source.set("5", *podAt("a", "2"), *podAt("b", "3"), *podAt("c", "5"))
			if list, err := w.list(t.Context()); err != nil || len(list) != 3 {
				t.Errorf("the first list: %v, %v", list, err)
			}
			source.set("1")
			second.Add(podAt("b", "3"))
			if w.follows() {
				t.Error("the watch counts as complete before it has what the first list had")
			}
			second.Add(podAt("c", "5"))
			harness.Eventually(t, "the watch is complete", w.follows)
			if list, err := w.list(t.Context()); err != nil || len(list) < 2 {
				t.Errorf("the next list: %v, %v", list, err)
			}
		})
	}
}
