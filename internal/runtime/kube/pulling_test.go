package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// testSlowPulls lets nodes pull images from registries that hold them back until a call has
// reported the pull.
func testSlowPulls(t *testing.T, c *cluster) {
	mounting := map[string]string{"kubernetes.io/hostname": "node2"} // a node that mounts images
	create := func(t *testing.T, r *Runtime, image string, progress func(runtime.Progress)) error {
		return r.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: workspace.ID(uuid.NewString()), Storage: workspace.StorageKubernetes, Claim: "home-1", Image: image}, progress)
	}
	t.Run("of a home", func(t *testing.T) {
		t.Parallel()
		s := c.slow(t, false)
		r := s.runtime(t)
		r.cfg.Nodes = mounting
		check(t, create(t, r, s.remoteImage(t), s.release()))
		s.wantSteps(t, runtime.StepCreating, runtime.StepSeeding, runtime.StepPulling, runtime.StepSeeding)
	})
	t.Run("of a Pod that is removed", func(t *testing.T) {
		t.Parallel()
		s := c.slow(t, false)
		r := s.runtime(t)
		home := newHome(t, r)
		r.cfg.IDEImage = s.copyOf(t, c.ideImage)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := r.StartContainer(ctx, startOf(home), func(p runtime.Progress) {
			if p.Step == runtime.StepPulling {
				cancel()
			}
		})
		list, failed := r.Containers(t.Context())
		if !errors.Is(err, context.Canceled) || failed != nil || len(list) != 1 {
			t.Fatal(list, err, failed)
		}
		var busy *runtime.BusyError
		if err := r.RemoveContainer(t.Context(), list[0].ID, 0); !errors.As(err, &busy) || busy.Step != runtime.StepPulling {
			t.Errorf("RemoveContainer: %v", err)
		}
		s.free()
		harness.Eventually(t, "it is removed", func() bool {
			err := r.RemoveContainer(t.Context(), list[0].ID, 0)
			if err != nil && !errors.Is(err, runtime.ErrBusy) {
				t.Fatal(err)
			}
			return err == nil
		})
	})
	t.Run("that fails", func(t *testing.T) {
		t.Parallel()
		s := c.slow(t, true)
		var pull *runtime.PullError
		err := create(t, s.runtime(t), s.remoteImage(t), s.release())
		if !errors.As(err, &pull) || pull.Message != fmt.Sprintf(runtime.MsgNoImage, s.registryHost) {
			t.Errorf("CreateVolume: %v", err)
		}
		s.wantSteps(t, runtime.StepCreating, runtime.StepSeeding, runtime.StepPulling)
	})
}

// slowRegistry is a cluster with a registry of its own that holds images back.
type slowRegistry struct {
	cluster
	free func()

	mu    sync.Mutex
	steps []string
}

// slow returns such a registry. With missing it never sends the images.
func (c *cluster) slow(t *testing.T, missing bool) *slowRegistry {
	t.Helper()
	s := &slowRegistry{cluster: *c}
	s.registry, s.registryHost = c.newRegistry(t)
	s.free = s.registry.Hold(missing)
	return s
}

// release records steps, and lets the registry go on once a pull has been reported.
func (s *slowRegistry) release() func(runtime.Progress) {
	var once sync.Once
	return func(p runtime.Progress) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.steps) == 0 || s.steps[len(s.steps)-1] != p.Step {
			s.steps = append(s.steps, p.Step)
		}
		if p.Step == runtime.StepPulling && p.Uncounted {
			once.Do(s.free)
		}
	}
}

func (s *slowRegistry) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

func (s *slowRegistry) wantSteps(t *testing.T, want ...string) {
	t.Helper()
	if got := s.seen(); !slices.Equal(got, want) {
		t.Errorf("the steps are %q, want %q", got, want)
	}
}

// copyOf adds an image of the cluster's to the registry.
func (s *slowRegistry) copyOf(t *testing.T, image string) string {
	t.Helper()
	ref, _ := s.registry.AddSaved("test/"+uuid.NewString(), s.saved[image], uuid.NewString())
	return s.registryHost + strings.TrimPrefix(ref, s.registry.Host())
}

// save returns an image of this machine's Docker as docker save does.
func save(t *testing.T, image string) []byte {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command("docker", "save", image)
	cmd.Stderr = &said
	saved, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker save %s: %v: %s", image, err, said.String())
	}
	return saved
}

// What the events of a Pod say about the pulls of its images.
func TestPulls(t *testing.T) {
	t.Parallel()
	type event struct {
		at              int // seconds
		reason, message string
	}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const pulling, pulled, failed, backOff = "Pulling", "Pulled", "Failed", "BackOff"
	for name, c := range map[string]struct {
		want   bool
		events []event
	}{
		"no events":  {false, nil},
		"not placed": {false, []event{{1, "FailedScheduling", "0/3 nodes are available"}}},
		"it runs":    {true, []event{{0, "Scheduled", "Successfully assigned a/b to node1"}, {2, pulling, `Pulling image "a:1"`}}},
		"it succeeded": {false, []event{
			{2, pulling, `Pulling image "a:1"`}, {9, pulled, `Successfully pulled image "a:1" in 7s (7s including waiting). Image size: 1 bytes.`},
		}},
		"it succeeded within a second": {false, []event{{2, pulled, `Successfully pulled image "a:1" in 10ms`}, {2, pulling, `Pulling image "a:1"`}}},
		"the image was there":          {false, []event{{2, pulled, `Container image "a:1" already present on machine`}}},
		"another image was there a moment before": {true, []event{
			{2, pulled, `Container image "a:1" already present on machine and can be accessed by the pod`}, {2, pulling, `Pulling image "b:1"`},
		}},
		"another image was pulled before": {true, []event{
			{2, pulling, `Pulling image "a:1"`}, {9, pulled, `Successfully pulled image "a:1" in 7s`}, {10, pulling, `Pulling image "b:1"`},
		}},
		"it failed": {false, []event{
			{2, pulling, `Pulling image "a:1"`}, {9, failed, `Failed to pull image "a:1": not found`}, {9, failed, "Error: ErrImagePull"},
		}},
		"it failed and waits": {false, []event{
			{2, pulling, `Pulling image "a:1"`}, {9, failed, `Failed to pull image "a:1": not found`}, {20, backOff, `Back-off pulling image "a:1"`},
		}},
		"it runs again after a failure": {true, []event{
			{9, failed, `Failed to pull image "a:1": EOF`}, {12, backOff, `Back-off pulling image "a:1"`}, {20, pulling, `Pulling image "a:1"`},
		}},
		"it began too long ago":              {false, []event{{-1, pulling, `Pulling image "a:1"`}}},
		"the event of its beginning is gone": {false, []event{{9, "Created", "Created container: it"}}},
	} {
		var list []corev1.Event
		for _, e := range c.events {
			list = append(list, corev1.Event{Reason: e.reason, Message: e.message, LastTimestamp: metav1.NewTime(begin.Add(time.Duration(e.at) * time.Second))})
		}
		if got := pulls(list, begin); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
