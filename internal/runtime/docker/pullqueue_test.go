package docker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pullClock drives a pullQueue second by second.
type pullClock struct {
	*testing.T
	q     pullQueue
	at    time.Time
	names map[*queuedPull]string
	log   []string
}

func newPullClock(t *testing.T, change func(*pullRules)) *pullClock {
	rules := newPullRules(Settings{PullBytesPerSecond: 64 << 10, PullTimeout: time.Hour})
	if change != nil {
		change(&rules)
	}
	return &pullClock{T: t, q: pullQueue{rules: rules}, at: time.Unix(0, 0), names: map[*queuedPull]string{}}
}

func (c *pullClock) add(user, name string) *queuedPull {
	p := c.q.add(user)
	c.names[p] = name
	c.judge()
	return p
}

var verdictNames = map[verdictKind]string{pullStart: "start", pullSetBack: "set back", pullTooSlow: "too slow", pullTooLong: "too long"}

// judge records what is decided, and ends Docker's calls at once.
func (c *pullClock) judge() {
	for _, v := range c.q.judge(c.at) {
		c.log = append(c.log, fmt.Sprintf("%d %s: %s", c.at.Unix(), c.names[v.pull], verdictNames[v.kind]))
		switch v.kind {
		case pullStart:
		case pullSetBack:
			c.q.left(v.pull)
		default:
			c.q.remove(v.pull)
		}
	}
}

// run advances the clock. each is called before every second.
func (c *pullClock) run(seconds int, each func()) {
	for range seconds {
		if each != nil {
			each()
		}
		c.at = c.at.Add(time.Second)
		c.judge()
	}
}

func (c *pullClock) want(log ...string) {
	c.Helper()
	if diff := cmp.Diff(log, c.log); diff != "" {
		c.Errorf("decisions (-want +got):\n%s", diff)
	}
	c.log = nil
}

func active(p *queuedPull, size int64) {
	for _, id := range []string{"a", "b", "c"} {
		p.layer(id, layerActive, size)
	}
}

func TestPullQueueOnePullPerUser(t *testing.T) {
	t.Parallel()
	c := newPullClock(t, nil)
	first := c.add("ann", "first")
	c.add("ann", "second")
	c.add("bob", "other")
	c.want("0 first: start", "0 other: start")
	c.run(3, nil)
	c.q.remove(first)
	c.judge()
	c.want("3 second: start")
}

func TestPullQueueRate(t *testing.T) {
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
		t.Run(tc.name, func(t *testing.T) {
			c := newPullClock(t, func(r *pullRules) {
				*r = newPullRules(Settings{PullBytesPerSecond: tc.min, PullTimeout: time.Hour})
			})
			p := c.add("ann", "it")
			active(p, tc.size)
			done := int64(0)
			c.run(1000, func() {
				done += tc.rate
				p.downloaded(done)
			})
			if slow := len(c.log) > 1; slow == tc.within {
				t.Errorf("decisions: %q", c.log)
			} else if slow && !strings.HasSuffix(c.log[1], "too slow") {
				t.Errorf("decisions: %q", c.log)
			}
		})
	}
}

func TestPullQueueRateCountsOnlyDownloads(t *testing.T) {
	t.Parallel()
	c := newPullClock(t, nil)
	waits := c.add("ann", "waits")
	unpacks := c.add("bob", "unpacks")
	busy := c.add("cam", "busy")
	waits.layer("a", layerWaiting, 0)
	unpacks.layer("a", layerDone, 0)
	active(busy, 1<<20)
	done := int64(0)
	c.q.rules.turn = time.Hour
	c.run(600, func() {
		done += 1 << 20
		busy.downloaded(done)
	})
	c.want("0 waits: start", "0 unpacks: start", "0 busy: start")
	// A registry that does not even describe the image.
	c.add("dan", "mute")
	c.run(40, nil)
	if got := strings.Join(c.log, "; "); !strings.Contains(got, "mute: too slow") {
		t.Errorf("decisions: %s", got)
	}
}

func TestPullQueueTimeout(t *testing.T) {
	t.Parallel()
	c := newPullClock(t, func(r *pullRules) { r.timeout = time.Minute })
	p := c.add("ann", "endless")
	c.add("ann", "next")
	active(p, 1<<20)
	done := int64(0)
	c.run(61, func() {
		done += 1 << 20
		p.downloaded(done)
	})
	c.want("0 endless: start", "60 endless: too long", "61 next: start")
}

// A pull that is fast enough and occupies all of Docker's downloads is set back for a
// user who waits for them, and continues afterwards.
func TestPullQueueSetsBack(t *testing.T) {
	t.Parallel()
	c := newPullClock(t, func(r *pullRules) { r.minRate = 0 })
	large := c.add("ann", "large")
	active(large, 1<<30)
	c.run(20, nil)
	small := c.add("bob", "small")
	small.layer("a", layerWaiting, 0)
	c.run(6, nil)
	c.want("0 large: start", "20 small: start", "26 large: set back")
	active(small, 1<<10)
	c.run(2, nil)
	c.q.remove(small)
	c.judge()
	c.want("28 large: start")
	// bob has used two seconds, and ann more than twenty more than he.
	active(large, 1<<30)
	again := c.add("bob", "again")
	again.layer("a", layerWaiting, 0)
	c.run(6, nil)
	c.want("28 again: start", "34 large: set back")
}

// Docker 20.10 does not always report that a layer waits. Such a layer counts as waiting if Docker
// reports that an earlier one waits. Otherwise its registry may be silent, and the pull is too slow.
func TestPullQueueUnreportedWait(t *testing.T) {
	t.Parallel()
	for waits, decided := range map[bool]struct {
		after int // seconds
		what  string
	}{
		true:  {6, "26 large: set back"},
		false: {32, "52 small: too slow"},
	} {
		c := newPullClock(t, nil)
		large := c.add("ann", "large")
		for _, id := range []string{"a", "b", "c", "d"} {
			large.layer(id, layerAsked, 0)
		}
		active(large, 1<<30)
		if waits {
			large.layer("d", layerWaiting, 0)
		} else {
			large.layer("d", layerDone, 0)
		}
		done := int64(0)
		download := func() {
			done += 1 << 20
			large.downloaded(done)
		}
		c.run(20, download)
		small := c.add("bob", "small")
		small.layer("a", layerAsked, 0)
		c.run(decided.after, download)
		c.want("0 large: start", "20 small: start", decided.what)
	}
}

// Pulls that use the downloads for equal times do not set each other back before the
// later one has caught up, and every time later.
func TestPullQueueSetsBackLessOften(t *testing.T) {
	t.Parallel()
	c := newPullClock(t, func(r *pullRules) { r.minRate = 0 })
	pulls := []*queuedPull{c.add("ann", "a"), c.add("bob", "b")}
	c.run(900, func() {
		held := false
		for _, p := range pulls {
			if !p.running {
				continue
			}
			if phase, known := p.phase(); known && phase == layerActive {
				held = true
			}
		}
		for _, p := range pulls {
			if p.running && !held {
				active(p, 1<<30)
				held = true
			} else if p.running && p.layers == nil {
				p.layer("a", layerWaiting, 0)
			}
		}
	})
	n := strings.Count(strings.Join(c.log, ";"), "set back")
	if n < 2 || n > 12 {
		t.Errorf("set back %d times in 15 min: %q", n, c.log)
	}
}

// A registry that does not respond to requests for layers leaves them waiting in
// Docker's report. The pull that was given to Docker first is set back.
func TestPullQueueSetsBackSilentRegistry(t *testing.T) {
	t.Parallel()
	c := newPullClock(t, nil)
	silent := c.add("ann", "silent")
	silent.layer("a", layerWaiting, 0)
	small := c.add("bob", "small")
	small.layer("a", layerWaiting, 0)
	c.run(15, nil)
	c.want("0 silent: start", "0 small: start", "10 silent: set back")
}

func TestPullStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{
		"Waiting": "0 true", "Pulling fs layer": "3 true", "Downloading": "1 true", "Extracting": "2 true", "Already exists": "2 true",
		"Pulling from library/debian": "0 false", "Digest: sha256:0": "0 false", "": "0 false", "Something new": "0 false",
	} {
		if phase, known := phaseOf(status); fmt.Sprint(phase, known) != want {
			t.Errorf("%q: %d %v, want %s", status, phase, known, want)
		}
	}
}
