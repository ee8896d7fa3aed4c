package docker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/testing/buildtest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// builds is a runtime whose server makes the default image and the slim one.
type builds struct {
	*testing.T
	*Runtime
	program    *buildtest.Program
	builder    *imagebuild.Builder
	conditions health.Monitor
	slim, full string

	mu    sync.Mutex
	shown []runtime.Progress
}

func newBuilds(t *testing.T) *builds {
	harness.NeedsDocker(t)
	b := &builds{T: t, slim: buildtest.Ref(t, "slim"), full: buildtest.Ref(t, "full")}
	b.program = buildtest.New(t,
		buildtest.Image{Name: "slim", Ref: b.slim, From: harness.TestImage()},
		buildtest.Image{Name: "full", Ref: b.full, From: buildtest.Variant(t, harness.TestImage())})
	var err error
	b.builder, err = imagebuild.New(t.Context(), imagebuild.Config{Program: b.program.Path, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.builder.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(end)
	b.Runtime = newRuntime(t, func(c *Config) { c.DefaultImage, c.Builds, c.Conditions = b.full, b.builder, &b.conditions })
	return b
}

// choose chooses the image for a container, and returns the result.
func (b *builds) choose(ctx context.Context, ref string) <-chan chosen {
	done := make(chan chosen, 1)
	go func() {
		image, err := b.Runtime.images.Choose(ctx, ref, "ann", runtime.ImageChoice{}, func(p runtime.Progress) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.shown = append(b.shown, p)
		})
		done <- chosen{image, err}
	}()
	return done
}

type chosen struct {
	image image.Chosen
	err   error
}

// shows waits until a start shows this.
func (b *builds) shows(step, detail string) {
	b.Helper()
	harness.Eventually(b.T, step+" "+detail, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.ContainsFunc(b.shown, func(p runtime.Progress) bool { return p.Step == step && p.Detail == detail && p.Uncounted })
	})
}

func (b *builds) ended(done <-chan chosen) image.Chosen {
	b.Helper()
	select {
	case c := <-done:
		if c.err != nil {
			b.Fatal(c.err)
		}
		return c.image
	case <-time.After(harness.Patience):
		b.Fatal("the start still waits")
		return image.Chosen{}
	}
}

// A start waits for the image that the server makes, through a failed build, and uses the slim
// image until the default one is ready.
func TestStartWaitsForBuild(t *testing.T) {
	t.Parallel()
	b := newBuilds(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := b.choose(ctx, b.full)
	waiting := b.choose(t.Context(), b.full)
	b.shows(runtime.StepWaitingBuild, b.slim+", step 1 of 2: fetch the parts of slim")
	cancel()
	if c := <-cancelled; !errors.Is(c.err, context.Canceled) {
		t.Errorf("a cancelled start ends with %v", c.err)
	}
	b.program.Fail("slim")
	b.shows(runtime.StepWaitingBuild, b.full+", step 1 of 2: fetch the parts of full")
	b.program.Fail("full")
	b.shows(runtime.StepBuildFailed, b.full+", "+b.slim)
	b.program.Finish("slim")
	b.builder.Retry("slim")
	slim := b.ended(waiting)
	if slim.Note != workspace.ImageInterim {
		t.Errorf("started with %+v", slim)
	}
	if here, err := b.Runtime.images.Here(t.Context(), b.slim); err != nil || here.ID != slim.ID {
		t.Errorf("the slim image is %+v, started with %+v (%v)", here, slim, err)
	}
	if newest, err := b.Newest(t.Context(), b.full, false); err != nil || newest.ID != "" {
		t.Errorf("the default image before it is ready: %+v, %v", newest, err)
	}

	b.program.Finish("full")
	b.builder.Retry("full")
	harness.Eventually(t, "the default image is ready", func() bool { i, _ := b.builder.Find(b.full); return i.State == imagebuild.Ready })
	full := b.ended(b.choose(t.Context(), b.full))
	if full.Note != "" || full.ID == slim.ID {
		t.Errorf("started with %+v, before with %+v", full, slim)
	}
	// The workspace that was started meanwhile is offered it.
	if newest, err := b.Newest(t.Context(), b.full, false); err != nil || newest.ID != full.ID {
		t.Errorf("the default image is %+v (%v), want %s", newest, err, full.ID)
	}
}

// Checks of the server do not wait for images, and a home is seeded once there is one.
func TestPrepareDoesNotWaitForBuild(t *testing.T) {
	t.Parallel()
	b := newBuilds(t)
	if err := b.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.conditions.Err("default-image"); err != nil {
		t.Errorf("the default image counts as missing: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		done <- b.CreateVolume(t.Context(), runtime.VolumeSpec{
			Workspace: workspace.ID(uuid.NewString()), Claim: uuid.NewString(), Storage: workspace.StorageDockerVolume, Image: b.full, User: "ann",
		}, nil)
	}()
	b.program.Finish("slim")
	if err := <-done; err != nil {
		t.Error(err)
	}
}
