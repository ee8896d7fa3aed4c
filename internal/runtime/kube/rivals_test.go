package kube

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// twin returns the runtime of another server of the same installation.
func (c *cluster) twin(t *testing.T, r *Runtime) *Runtime {
	t.Helper()
	other := c.runtime(t)
	other.cfg.Installation = r.cfg.Installation
	return other
}

func newHome(t *testing.T, r *Runtime) runtime.VolumeSpec {
	t.Helper()
	spec := runtime.VolumeSpec{Workspace: workspace.ID(uuid.NewString()), Storage: workspace.StorageKubernetes, Claim: "home-1", Image: harness.TestImage()}
	check(t, r.CreateVolume(t.Context(), spec, nil))
	return spec
}

func startOf(home runtime.VolumeSpec) runtime.ContainerSpec {
	return runtime.ContainerSpec{Workspace: home.Workspace, UID: workspace.ArchivedUID, Claim: "start-1", Image: home.Image, Storage: home.Storage, VolumeClaim: home.Claim, Secret: uuid.NewString()}
}

func archiveOf(home runtime.VolumeSpec) runtime.JobSpec {
	return runtime.JobSpec{
		Workspace: home.Workspace, Claim: "op-1", Kind: runtime.JobArchive, Storage: home.Storage, VolumeClaim: home.Claim, Key: "key-1",
		Input: []byte("wait for ever\nexit 0\n"),
	}
}

// testRivals lets two servers start a workspace, archive its home and remove it, all at once.
// At no moment two Pods run on the home, and none on a home that is removed.
func testRivals(t *testing.T, c *cluster) {
	a := c.runtime(t)
	b := c.twin(t, a)
	for range 2 {
		home := newHome(t, a)
		ctx, stop := context.WithCancel(t.Context())
		watched := make(chan int, 1)
		go func() { watched <- c.mostAtOnce(ctx, t, home.Workspace) }()

		var group sync.WaitGroup
		var started, job, removed error
		group.Go(func() { _, started = a.StartContainer(t.Context(), startOf(home), nil) })
		group.Go(func() { _, job = b.StartJob(t.Context(), archiveOf(home), nil) })
		group.Go(func() { removed = b.RemoveVolume(t.Context(), home.Workspace, home.Claim, nil) })
		group.Wait()
		stop()
		if most := <-watched; most > 1 {
			t.Errorf("%d Pods were admitted to one home", most)
		}
		won := 0
		for what, err := range map[string]error{"StartContainer": started, "StartJob": job, "RemoveVolume": removed} {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, runtime.ErrBusy) && !errors.Is(err, runtime.ErrVolumeMismatch):
				t.Errorf("%s: %v", what, err)
			}
		}
		if won > 1 {
			t.Errorf("%d of three calls succeeded", won)
		}
		t.Logf("StartContainer: %v; StartJob: %v; RemoveVolume: %v", started, job, removed)
	}
}

// mostAtOnce watches how many Pods without a gate use a home at the same time, until ctx ends.
func (c *cluster) mostAtOnce(ctx context.Context, t *testing.T, id workspace.ID) int {
	events, err := c.Client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: labelWorkspace + "=" + string(id)})
	if err != nil {
		t.Error(err)
		return 0
	}
	defer events.Stop()
	admitted, most := map[string]bool{}, 0
	for e := range events.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		delete(admitted, p.Name)
		if e.Type != "DELETED" && !gated(p) && !ended(p) {
			admitted[p.Name] = true
		}
		most = max(most, len(admitted))
	}
	return most
}

// testLate lets a server be suspended between its last look at a home and the start of its
// Pod, while another server does something else with the home. The first starts nothing.
func testLate(t *testing.T, c *cluster) {
	a := c.runtime(t)
	b := c.twin(t, a)
	restore := func(home runtime.VolumeSpec) runtime.JobSpec {
		spec := archiveOf(home)
		spec.Kind, spec.Input = runtime.JobRestore, []byte("wipe\nexit 0\n")
		return spec
	}
	for name, overtake := range map[string]func(*testing.T, runtime.VolumeSpec) error{
		"seeds it": func(t *testing.T, home runtime.VolumeSpec) error {
			return b.CreateVolume(t.Context(), home, nil)
		},
		"restores it": func(t *testing.T, home runtime.VolumeSpec) error {
			_, err := b.StartJob(t.Context(), restore(home), nil)
			return err
		},
		"removes it": func(t *testing.T, home runtime.VolumeSpec) error {
			return b.RemoveVolume(t.Context(), home.Workspace, home.Claim, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := runtime.VolumeSpec{Workspace: workspace.ID(uuid.NewString()), Storage: workspace.StorageKubernetes, Claim: "home-1", Image: harness.TestImage()}
			check(t, a.CreateEmptyVolume(t.Context(), home))
			volume, err := a.home(t.Context(), home.Workspace, home.Claim)
			check(t, err)
			spec := restore(home)
			spec.Claim, spec.Key = "op-late", "key-late"
			late, err := a.create(t.Context(), a.jobPod(spec, volume))
			check(t, err)
			overtaken := false
			_, err = a.admit(t.Context(), late, func(*corev1.Pod, *corev1.PersistentVolumeClaim) error {
				overtaken = true
				return overtake(t, home)
			})
			if !overtaken || err == nil {
				t.Fatalf("the late Pod was started: overtaken %v, %v", overtaken, err)
			}
			if p, err := a.named(t.Context(), late.Name, roleJob); err != nil || p != nil && p.UID == late.UID {
				t.Errorf("the late Pod exists: %v, %v", p, err)
			}
		})
	}
}

// testAdmittedByAnother lets a server be suspended before it opens its workspace's Pod, which
// another server opens meanwhile. The first leaves it alone.
func testAdmittedByAnother(t *testing.T, c *cluster) {
	a := c.runtime(t)
	b := c.twin(t, a)
	home := newHome(t, a)
	if _, err := a.StartContainer(t.Context(), startOf(newHome(t, a)), nil); err != nil { // reads what is to be known of the image
		t.Fatal(err)
	}
	volume, err := a.home(t.Context(), home.Workspace, home.Claim)
	check(t, err)
	late, err := a.createWorkspace(t.Context(), startOf(home), volume, chosenImage{name: home.Image, policy: corev1.PullIfNotPresent}, nil)
	check(t, err)
	started, err := b.StartContainer(t.Context(), startOf(home), nil)
	check(t, err)
	if _, err := a.admit(t.Context(), late, nil); err == nil {
		t.Error("a Pod was opened twice")
	}
	if now, err := a.pods().Get(t.Context(), late.Name, metav1.GetOptions{}); err != nil || idOf(now) != started.ID || now.DeletionTimestamp != nil {
		t.Errorf("the workspace that another server started is gone: %v", err)
	}
}
