package image

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
)

// puller is a runtime on a Docker of its own, whose three downloads no other test uses,
// and a registry.
type puller struct {
	*testing.T
	*Images
	registry *dockertest.Registry
}

func newPuller(t *testing.T, change func(*pullRules)) puller {
	d := dockertest.Start(t, dockertest.Options{})
	r := newImages(t, engine.Config{Host: d.Host, Log: harness.Logger(t, slog.LevelDebug)}, Config{PullTimeout: time.Hour})
	r.pulls.rules.tick = 50 * time.Millisecond
	change(&r.pulls.rules)
	return puller{T: t, Images: r, registry: dockertest.NewRegistry(t)}
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

// newImages returns the images of a Docker Engine.
func newImages(t *testing.T, e engine.Config, cfg Config) *Images {
	harness.NeedsDocker(t)
	e.Installation = uuid.NewString()
	docker, err := engine.New(e)
	check(t, err)
	t.Cleanup(func() { check(t, docker.Close()) })
	return New(docker, cfg)
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

// newPulls returns pulls of one image each, which Docker was given in this order.
func newPulls(t *testing.T, minRate int64, users ...string) (*pulls, []*pulling) {
	t.Helper()
	s := &pulls{rules: newPullRules(Config{PullBytesPerSecond: minRate}), stuck: new(health.Monitor).New(health.Config{Name: "pulls"})}
	var list []*pulling
	for _, user := range users {
		p := s.join(user)
		if !s.mayBegin(p) {
			t.Fatalf("the pull of %s does not begin", user)
		}
		list = append(list, p)
	}
	return s, list
}

// seconds judges a pull every second, with each before, and returns how long it went on.
func (s *pulls) seconds(p *pulling, n int, each func(second int)) (int, *runtime.SlowPullError) {
	for i := range n {
		each(i)
		if _, slow := s.judge(p, time.Unix(int64(i), 0), time.Second); slow != nil {
			return i + 1, slow
		}
	}
	return n, nil
}

func TestOnePullPerUser(t *testing.T) {
	t.Parallel()
	s, first := newPulls(t, 0, "ann")
	second, third, other := s.join("ann"), s.join("ann"), s.join("bob")
	if s.mayBegin(second) || s.mayBegin(third) || !s.mayBegin(other) {
		t.Error("ann has two pulls, or bob has none")
	}
	s.leave(first[0])
	if s.mayBegin(third) || !s.mayBegin(second) {
		t.Error("the second pull does not follow the first")
	}
}

func TestPullRate(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, tc := range []struct {
		name   string
		rate   int64 // bytes per second
		min    int64
		size   int64 // of each of three layers
		within bool
	}{
		{"nothing at all", 0, 64 << 10, 100 << 10, false},
		{"trickle", 10 << 10, 64 << 10, 100 * mib, false},
		{"just enough", 64 << 10, 64 << 10, 100 * mib, true},
		// Docker has not reported up to 512 KiB of each layer.
		{"fast enough with what is unreported", 30 << 10, 64 << 10, 100 * mib, true},
		{"small layers are reported more often", 30 << 10, 64 << 10, mib, false},
		{"no minimum", 0, 0, mib, true},
		{"a high minimum", 900 << 10, 2 * mib, 100 * mib, false},
		{"a low minimum", 2 << 10, 1 << 10, mib, true},
		{"below a low minimum", 100, 1 << 10, mib, false},
	} {
		s, list := newPulls(t, tc.min, "ann")
		after, slow := s.seconds(list[0], 600, func(second int) {
			for i, id := range []string{"a", "b", "c"} {
				done := int64(second)*tc.rate - int64(i)*tc.size // one after the other
				list[0].layer(id, "Downloading", min(max(done, 0), tc.size-1), tc.size)
			}
		})
		if (slow == nil) != tc.within || slow != nil && (slow.Least != tc.min || slow.Rate >= tc.min || after > int(2*maxWindow/time.Second)) {
			t.Errorf("%s: after %d s: %v", tc.name, after, slow)
		}
	}
}

// What does not depend on the registry does not count towards the rate: a wait for others, which
// Docker 20.10 does not always report, and unpacking.
func TestPullRateCountsOnlyDownloads(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, status string
		first        string // of a pull before it
		waits, slow  bool
	}{
		{"waits", "Waiting", "Downloading", true, false},
		{"unreported wait", "Pulling fs layer", "Downloading", true, false},
		{"behind one that waits", "Pulling fs layer", "Waiting", false, false},
		{"waits for another program", "Waiting", "Extracting", false, false},
		{"unpacks", "Extracting", "Downloading", false, false},
		{"silent registry", "Pulling fs layer", "Extracting", false, true},
		{"stalls", "Downloading", "Downloading", false, true},
		{"image is not described", "", "Downloading", false, true},
	} {
		s, list := newPulls(t, 64<<10, "ann", "bob")
		list[0].layer("a", tc.first, 0, 1<<20)
		list[1].layer("b", tc.status, 0, 1<<20)
		if waits, _ := s.judge(list[1], time.Unix(0, 0), 0); waits != tc.waits {
			t.Errorf("%s: waits %v", tc.name, waits)
		}
		if after, slow := s.seconds(list[1], 600, func(int) {}); (slow != nil) != tc.slow || slow != nil && after > 33 {
			t.Errorf("%s: after %d s: %v", tc.name, after, slow)
		}
	}
}

func TestPullTimeout(t *testing.T) {
	t.Parallel()
	r := newImages(t, engine.Config{Log: harness.Logger(t, slog.LevelDebug)}, Config{})
	r.pulls.rules.timeout = 100 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never responds
	check(t, err)
	t.Cleanup(func() { l.Close() })
	image := l.Addr().String() + "/none:1"
	var slow *runtime.SlowPullError
	if err := r.pull(t.Context(), image, "ann", nil); !errors.As(err, &slow) || slow.Limit != 100*time.Millisecond || slow.Image != image {
		t.Errorf("pull = %v", err)
	}
}

func TestPullStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]layerPhase{
		"Waiting": layerWaiting, "Pulling fs layer": layerAsked, "Downloading": layerActive, "Extracting": layerDone, "Already exists": layerDone,
		"Pulling from library/debian": -1, "Digest: sha256:0": -1, "": -1, "Something new": -1,
	} {
		if phase, known := phaseOf(status); known != (want >= 0) || known && phase != want {
			t.Errorf("%q: %d %v, want %d", status, phase, known, want)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
