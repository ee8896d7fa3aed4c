package docker

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// After a restart Docker 20.10 responds to the creation of an existing volume
// without its labels until the volume is inspected. Every call that creates volumes
// must succeed after a restart at any point. SOAK_RESTARTS=100 runs more restarts.
func TestHomesSurviveDockerRestarts(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	restarts := 2
	if s := os.Getenv("SOAK_RESTARTS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("SOAK_RESTARTS: %v", err)
		}
		restarts = n
	}
	d := dockertest.Start(t, dockertest.Options{Image: harness.TestImage()})
	r := newRuntime(t, func(c *Config) { c.Host = d.Host })
	stages := []struct {
		name   string
		before func(l *lateHome)
		after  func(l *lateHome)
	}{{
		name:   "seeding",
		before: func(l *lateHome) { l.halfMade("home-1") },
		after:  func(l *lateHome) { l.seed("home-1") },
	}, {
		name:   "seeded",
		before: func(l *lateHome) { l.seed("home-1") },
		after:  func(l *lateHome) { l.ok("CreateVolume", r.CreateVolume(l.Context(), l.volume("home-1"), nil)) },
	}, {
		name: "empty",
		before: func(l *lateHome) {
			l.ok("CreateEmptyVolume", r.CreateEmptyVolume(l.Context(), l.volume("home-1")))
		},
		after: func(l *lateHome) { l.restore("op", "home-1", "key") },
	}, {
		name: "job ended",
		before: func(l *lateHome) {
			l.ok("CreateEmptyVolume", r.CreateEmptyVolume(l.Context(), l.volume("home-1")))
			l.runJob(r, l.restoring("op", "home-1", "key", "kept"))
		},
		after: func(l *lateHome) {
			l.ok("CreateEmptyVolume", r.CreateEmptyVolume(l.Context(), l.volume("home-1")))
			_, err := r.jobs.StartJob(l.Context(), l.restoring("op", "home-1", "key", "kept"), nil)
			l.ok("StartJob", err)
			l.ok("MarkRestored", r.MarkRestored(l.Context(), l.id, "home-1", "key"))
			l.claim = "home-1"
		},
	}, {
		name:   "marked",
		before: func(l *lateHome) { l.restore("op", "home-1", "key") },
		after: func(l *lateHome) {
			l.ok("CreateEmptyVolume", r.CreateEmptyVolume(l.Context(), l.volume("home-1")))
			l.ok("MarkRestored", r.MarkRestored(l.Context(), l.id, "home-1", "key"))
		},
	}, {
		name:   "settled",
		before: func(l *lateHome) { l.seed("home-1"); l.settle() },
		after:  func(l *lateHome) { l.settle() },
	}, {
		name: "a record of another home",
		before: func(l *lateHome) {
			settled(l, "home-0")
			l.seed("home-1")
		},
		after: func(l *lateHome) {
			settled(l, "home-1")
		},
	}}
	for i := range restarts {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]
		homes := make([]*lateHome, len(stages))
		for j, s := range stages {
			homes[j] = &lateHome{
				T: t, old: r, next: r, storage: workspace.StorageDockerVolume,
				id: workspace.ID(uuid.NewString()), objects: t.TempDir(),
			}
			s.before(homes[j])
		}
		d.Restart(signal)
		for j, s := range stages {
			t.Run(fmt.Sprintf("%d %v/%s", i, signal, s.name), func(t *testing.T) {
				homes[j].T = t
				s.after(homes[j])
				homes[j].alive()
			})
		}
	}
}

// settled records that a home is live.
func settled(l *lateHome, claim string) {
	l.Helper()
	_, err := l.next.engine.EnsureVolume(l.Context(), client.VolumeCreateOptions{
		Name: engine.SettledName(l.id, claim), Labels: l.next.engine.Labels(engine.RoleSettled, l.id, claim),
	})
	l.ok("VolumeCreate", err)
}
