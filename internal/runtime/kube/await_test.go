package kube

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
)

// A call that waits for a Pod does not flood an API server that was restarted and has no watch from
// as early as the Pod's version.
func TestWaitOverExpiredWatches(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	api.expired = true
	api.put("pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waits", Namespace: namespace, UID: "1"}})
	p, err := r.pods().Get(t.Context(), "waits", metav1.GetOptions{})
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*watchAgain/2)
	defer cancel()
	_, err = r.await(ctx, p, func(*corev1.Pod) (bool, error) { return false, nil })
	if !errors.Is(err, runtime.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await: %v", err)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	if n := api.expirations; n == 0 || n > 3 {
		t.Errorf("%d watches in %s", n, 5*watchAgain/2)
	}
}
