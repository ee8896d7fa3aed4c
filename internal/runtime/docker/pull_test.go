package docker

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"codehub/internal/dockertest"
	"codehub/internal/harness"
	"codehub/internal/health"
	"codehub/internal/runtime"
)

// puller is a runtime on a Docker of its own, whose three downloads no other test uses,
// and a registry.
type puller struct {
	*testing.T
	*Runtime
	registry *dockertest.Registry
}

func newPuller(t *testing.T, change func(*pullRules)) puller {
	d := dockertest.Start(t, dockertest.Options{})
	r := newRuntime(t, func(c *Config) {
		c.Host, c.PullBytesPerSecond, c.PullTimeout = d.Host, 0, time.Hour
		c.DataDir = filepath.Join(t.TempDir(), "data")
	})
	r.pulls.tick = 50 * time.Millisecond
	rules := &r.pulls.queue.rules
	rules.patience, rules.turn = 500*time.Millisecond, time.Second
	if change != nil {
		change(rules)
	}
	return puller{T: t, Runtime: r, registry: dockertest.NewRegistry(t)}
}

// start begins a pull and returns its result.
func (p puller) start(ctx context.Context, image, user string, progress func(runtime.Progress)) <-chan error {
	done := make(chan error, 1)
	go func() { done <- p.pull(ctx, image, user, progress) }()
	return done
}

func (p puller) await(what string, done <-chan error) error {
	p.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(harness.Patience):
		p.Fatalf("%s does not end", what)
		return nil
	}
}

// occupied waits until Docker downloads three of the layers, as many as it does at once.
func (p puller) occupied(layers []*dockertest.Layer) {
	p.Helper()
	harness.Eventually(p.T, "Docker downloads three layers", func() bool { return dockertest.Sending(layers) == 3 })
}

const tinyImage = 300 << 10

func TestSlowPullIsCancelled(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	p := newPuller(t, func(r *pullRules) { r.minRate, r.window = 100<<10, 10*time.Second })
	slow := dockertest.Layers(5, 4<<20, 1<<10)
	first := p.start(t.Context(), p.registry.Add("slow", slow), "ann", nil)
	p.occupied(slow)
	second := p.start(t.Context(), p.registry.Add("slow2", dockertest.Layers(5, 4<<20, 1<<10)), "ann", nil)
	small := p.start(t.Context(), p.registry.Add("small", dockertest.Layers(1, tinyImage, 0)), "bob", nil)
	if err := p.await("another user's pull", small); err != nil {
		t.Errorf("another user's pull: %v", err)
	}
	for name, done := range map[string]<-chan error{"the first": first, "the second": second} {
		err := p.await(name, done)
		var e *runtime.SlowPullError
		if !errors.As(err, &e) || e.Image == "" || e.Least != 100<<10 || e.Rate >= 100<<10 || e.Limit != 0 {
			t.Errorf("%s: %#v, %v", name, e, err)
		}
	}
	harness.Eventually(t, "no layer is sent", func() bool { return dockertest.Sending(slow) == 0 })
}

// Docker 20.10 does not end a request to which the registry does not respond at all, even
// if its pull was cancelled. codehub reports that no pull can continue.
func TestSilentRegistryIsReported(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	var conditions health.Monitor
	p := newPuller(t, func(r *pullRules) { r.minRate, r.window, r.blocked = 100<<10, 10*time.Second, time.Second })
	p.pulls.stuck = conditions.New(health.Config{Name: "pulls"})
	layers := dockertest.Layers(3, 4<<20, 1<<10)
	for _, l := range layers {
		l.SetSilent(true)
	}
	silent := p.start(t.Context(), p.registry.Add("silent", layers), "ann", nil)
	var e *runtime.SlowPullError
	if err := p.await("the silent pull", silent); !errors.As(err, &e) || e.Rate != 0 {
		t.Errorf("the silent pull: %v", err)
	}
	small := p.start(t.Context(), p.registry.Add("small", dockertest.Layers(1, tinyImage, 0)), "bob", nil)
	harness.Eventually(t, "the pull ends, or the condition fails", func() bool {
		return conditions.Err("pulls") != nil || len(small) > 0
	})
	for _, l := range layers {
		l.SetSilent(false)
		l.SetRate(0)
	}
	if err := p.await("the other user's pull", small); err != nil {
		t.Errorf("the other user's pull: %v", err)
	}
	harness.Eventually(t, "the condition ends", func() bool { return conditions.Err("pulls") == nil })
}

// A pull that is fast enough, and one whose registry does not respond, is set back while
// another user waits, and completes afterwards.
func TestPullIsSetBackForAnotherUser(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	p := newPuller(t, nil)
	layers := dockertest.Layers(5, 6<<20, 300<<10)
	var steps []string
	large := p.start(t.Context(), p.registry.Add("large", layers), "ann", func(g runtime.Progress) {
		if len(steps) == 0 || steps[len(steps)-1] != g.Step {
			steps = append(steps, g.Step)
		}
	})
	p.occupied(layers)
	small := p.start(t.Context(), p.registry.Add("small", dockertest.Layers(1, tinyImage, 0)), "bob", nil)
	if err := p.await("the other user's pull", small); err != nil {
		t.Errorf("the other user's pull: %v", err)
	}
	for _, l := range layers {
		l.SetRate(0)
	}
	if err := p.await("the large pull", large); err != nil {
		t.Errorf("the large pull: %v", err)
	}
	if len(steps) < 3 || steps[0] != runtime.StepPulling || steps[1] != runtime.StepWaitingPull || steps[2] != runtime.StepPulling {
		t.Errorf("steps = %q", steps)
	}
}
