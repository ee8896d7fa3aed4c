package kube

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/runtimetest"
)

// testAside lets other servers and Pods use a volume while it is set aside. Whatever happens,
// no Pod runs on a home that is removed, and what was written last is kept.
func testAside(t *testing.T, c *cluster) {
	a := c.runtime(t)
	b := c.twin(t, a)
	h := direct{c: c, r: a}
	exists := func(t *testing.T, home runtime.VolumeSpec) bool {
		t.Helper()
		_, err := c.Client.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), home.Workspace.VolumeName(), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	// while does something during the copy of the volume, once.
	while := func(f func()) func(runtime.Progress) {
		return func(p runtime.Progress) {
			if f != nil && p.Step == runtime.StepCopying {
				f()
				f = nil
			}
		}
	}
	for name, test := range map[string]func(*testing.T, runtime.VolumeSpec){
		"a Pod mounts it after the copy": func(t *testing.T, home runtime.VolumeSpec) {
			var leave func()
			_, err := a.SetAside(t.Context(), home.Workspace, "home-2", home.Claim, while(func() { leave = h.use(t, home.Workspace, "user-"+uuid.NewString(), false) }))
			if !errors.Is(err, runtime.ErrConflict) || !exists(t, home) {
				t.Fatalf("set aside while it is in use: %v", err)
			}
			leave()
			// The home is used again, and set aside later.
			must(t)(a.StartContainer(t.Context(), startOf(home), nil))
			check(t, a.RemoveContainer(t.Context(), idOf(h.pod(t, home.Workspace.ContainerName())), 0))
			h.edit(t, home.Workspace, "write newer work")
			name, err := a.SetAside(t.Context(), home.Workspace, "home-2", home.Claim, nil)
			if err != nil || exists(t, home) {
				t.Fatalf("set aside again: %v", err)
			}
			if !slices.ContainsFunc(h.aside(t, name), func(f runtimetest.File) bool { return f.Path == "newer" && f.Content == "work" }) {
				t.Errorf("what was written after the first copy is lost: %+v", h.aside(t, name))
			}
		},
		"another server starts its workspace": func(t *testing.T, home runtime.VolumeSpec) {
			var started error
			name, err := a.SetAside(t.Context(), home.Workspace, "home-2", home.Claim, while(func() { _, started = b.StartContainer(t.Context(), startOf(home), nil) }))
			if err != nil || name == "" || exists(t, home) {
				t.Errorf("SetAside: %q, %v", name, err)
			}
			if !errors.Is(started, runtime.ErrVolumeMismatch) {
				t.Errorf("StartContainer: %v", started)
			}
		},
		"another server keeps it": func(t *testing.T, home runtime.VolumeSpec) {
			var kept error
			_, err := a.SetAside(t.Context(), home.Workspace, "home-2", home.Claim, while(func() { _, kept = b.SetAside(t.Context(), home.Workspace, home.Claim, home.Claim, nil) }))
			if kept != nil || !errors.Is(err, runtime.ErrBusy) || !exists(t, home) {
				t.Fatalf("a server that was overtaken set the home aside: %v; the other one: %v", err, kept)
			}
			if _, err := b.StartContainer(t.Context(), startOf(home), nil); err != nil {
				t.Errorf("the home cannot be used afterwards: %v", err)
			}
		},
		"its server has died": func(t *testing.T, home runtime.VolumeSpec) {
			err := a.change(t.Context(), h.present(t, home.Workspace, home.Claim), func(*corev1.PersistentVolumeClaim) (map[string]any, error) {
				return map[string]any{noteAside: "earlier"}, nil
			})
			check(t, err)
			if _, err := a.StartContainer(t.Context(), startOf(home), nil); !errors.Is(err, runtime.ErrVolumeMismatch) {
				t.Errorf("StartContainer: %v", err)
			}
			if name, err := b.SetAside(t.Context(), home.Workspace, "home-2", home.Claim, nil); err != nil || name == "" || exists(t, home) {
				t.Errorf("SetAside: %q, %v", name, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newHome(t, a))
		})
	}
}
