package kube

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// copied stores the copy of a claim that is set aside, as change leaves it.
func (a *stubAPI) copied(r *Runtime, id workspace.ID, original *corev1.PersistentVolumeClaim, complete bool) string {
	a.t.Helper()
	c := r.newClaim(asideName(id, original), r.labels(roleAside, id, ""))
	c.Annotations = map[string]string{noteOrigin: string(original.UID)}
	if complete {
		c.Annotations[noteSince] = time.Now().UTC().Format(time.RFC3339)
	}
	a.put("persistentvolumeclaims", c)
	return c.Name
}

// leaving makes the claim of a home one that was deleted, which a finalizer keeps.
func leaving(c *corev1.PersistentVolumeClaim) {
	c.DeletionTimestamp = &metav1.Time{Time: time.Now().Truncate(time.Second)}
}

// A call that ended after it had deleted the original leaves the only copy. The next call keeps it.
func TestSetAsideKeepsCopyOfRemovedVolume(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id, original := api.home(r, leaving)
	want := api.copied(r, id, original, true)
	type result struct {
		name string
		err  error
	}
	over := make(chan result, 1)
	go func() {
		name, err := r.SetAside(t.Context(), id, "home-2", "home-1", nil)
		over <- result{name, err}
	}()
	harness.Eventually(t, "the call waits for the original", func() bool {
		api.mu.Lock()
		defer api.mu.Unlock()
		return len(api.deleted) > 0
	})
	select {
	case got := <-over:
		t.Fatalf("SetAside = %q, %v while the original exists", got.name, got.err)
	default:
	}
	api.finish("persistentvolumeclaims", original.Name)
	if got := <-over; got.err != nil || got.name != want {
		t.Errorf("SetAside = %q, %v, want %q", got.name, got.err, want)
	}
	if c := api.claim(want); c == nil || c.Annotations[noteSince] == "" {
		t.Errorf("the copy is lost: %+v", c)
	}
	if slices.Contains(api.deleted, "persistentvolumeclaims/"+want) {
		t.Error("the copy was deleted")
	}
}

// A volume that is being removed and has no complete copy cannot be set aside, and what there is
// of a copy stays.
func TestSetAsideOfRemovedVolumeWithoutCopy(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*stubAPI, *Runtime, workspace.ID, *corev1.PersistentVolumeClaim){
		"none": func(*stubAPI, *Runtime, workspace.ID, *corev1.PersistentVolumeClaim) {},
		"incomplete": func(a *stubAPI, r *Runtime, id workspace.ID, c *corev1.PersistentVolumeClaim) {
			a.copied(r, id, c, false)
		},
		"of another volume": func(a *stubAPI, r *Runtime, id workspace.ID, c *corev1.PersistentVolumeClaim) {
			name := a.copied(r, id, c, true)
			a.mu.Lock()
			defer a.mu.Unlock()
			merge(a.objects["persistentvolumeclaims/"+name], map[string]any{"metadata": map[string]any{"annotations": map[string]any{noteOrigin: "another"}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, r := newStub(t)
			id, original := api.home(r, leaving)
			prepare(api, r, id, original)
			got, err := r.SetAside(t.Context(), id, "home-2", "home-1", nil)
			if !errors.Is(err, runtime.ErrBusy) || len(api.deleted) > 0 {
				t.Errorf("SetAside = %q, %v; deleted %q", got, err, api.deleted)
			}
		})
	}
}

// The Pod of a copy whose server has died does not block the next call, also if it never starts.
func TestSetAsideReplacesPodOfEarlierCopy(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id, original := api.home(r, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
	aside := r.newClaim(asideName(id, original), r.labels(roleAside, id, ""))
	left := r.copyPod(id, original, aside)
	left.Status.Phase = corev1.PodPending
	uid := api.put("pods", left)
	api.log = `{"done": true, "bytes": 5, "entries": 2}` + "\n"
	api.opened = func(string) any {
		return corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
			Name: containerHelper, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.Now()}},
		}}}
	}
	name, err := r.SetAside(t.Context(), id, "home-2", "home-1", nil)
	if err != nil || name != aside.Name || api.claim(original.Name) != nil || api.claim(name).Annotations[noteEntries] != "2" {
		t.Errorf("SetAside = %q, %v beside the Pod %s", name, err, uid)
	}
}
