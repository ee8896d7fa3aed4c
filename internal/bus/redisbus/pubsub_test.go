package redisbus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/testing/harness"
	"codehub/internal/testing/redistest"
	"codehub/internal/workspace"
)

// limit limits a wait that is expected to end.
const limit = 30 * time.Second

// server is a running bus, one of several on one Redis.
type server struct {
	*Redis
	t      *testing.T
	events chan string
	wakes  chan struct{}
	log    *syncBuffer
}

func start(t *testing.T, url string, opts ...func(*Redis)) *server {
	t.Helper()
	s := &server{t: t, events: make(chan string, 10000), wakes: make(chan struct{}, 10000), log: &syncBuffer{}}
	s.Redis = open(t, url, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(s.log, nil))
	})
	s.pingEvery, s.retryLast = 100*time.Millisecond, 100*time.Millisecond
	s.pingTimeout = 10 * time.Second // a busy machine is no silence
	for _, o := range opts {
		o(s.Redis)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	hearer := Handler{
		Event: func(owner string, id workspace.ID) { s.events <- owner + " " + string(id) },
		Wake:  func() { s.wakes <- struct{}{} },
	}
	go func() { done <- s.Run(ctx, hearer) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// until waits until the subscription is up, or down.
func (s *server) until(well bool) {
	s.t.Helper()
	harness.Await(s.t, limit, fmt.Sprintf("subscribed: %v", well), s.Trouble, func(trouble error) bool { return (trouble == nil) == well })
}

func (s *server) hears(want string) {
	s.t.Helper()
	for {
		select {
		case got := <-s.events:
			if got == want {
				return
			}
		case <-time.After(limit):
			s.t.Fatalf("no event %s", want)
		}
	}
}

func (s *server) wakesUp() {
	s.t.Helper()
	select {
	case <-s.wakes:
	case <-time.After(limit):
		s.t.Fatal("not woken")
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	a, b := start(t, s.URL()), start(t, s.URL())
	a.until(true)
	b.until(true)
	owner := string(id(77))
	for n := range 500 {
		a.PublishEvent(owner, id(n))
	}
	for _, hearer := range []*server{a, b} {
		for n := range 500 {
			hearer.hears(fmt.Sprint(owner, " ", id(n)))
		}
	}
	a.PublishWake(owner, id(1))
	a.wakesUp()
	b.wakesUp()
	if n := a.Dropped(); n != 0 {
		t.Errorf("%d were dropped", n)
	}
}

// logged is a line of the log that tells of a lost connection, without its time.
var logged = regexp.MustCompile(`msg="redis not reachable.*`)

// A lost connection is restored. It is logged once for each cause: a server that restarts
// slowly may first close its connections and then refuse new ones.
func TestSubscriptionIsRestored(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]struct{ begin, end func(*redistest.Server) }{
		"restart": {(*redistest.Server).Stop, (*redistest.Server).Start},
		"silence": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
		"killed":  {func(s *redistest.Server) { s.Do("CLIENT", "KILL", "TYPE", "pubsub") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.New(t)
			a := start(t, s.URL(), func(b *Redis) {
				if name == "silence" {
					b.pingTimeout = 2 * time.Second
				}
				if name == "killed" {
					b.retryFirst, b.retryLast = limit/30, limit/30 // long enough to be observed
				}
			})
			a.until(true)
			for range 2 {
				harm.begin(s)
				a.until(false)
				if harm.end != nil {
					harm.end(s)
				}
				a.until(true)
				a.PublishEvent(string(id(1)), id(2))
				a.hears(fmt.Sprint(id(1), " ", id(2)))
			}
			losses := strings.Split(a.log.String(), "redis connection restored")
			if len(losses) != 3 {
				t.Errorf("%d connections were restored, want 2", len(losses)-1)
			}
			for n, loss := range losses[:len(losses)-1] {
				if causes := logged.FindAllString(loss, -1); len(causes) == 0 || len(slices.Compact(slices.Sorted(slices.Values(causes)))) != len(causes) {
					t.Errorf("loss %d is logged as %q, want each cause once", n+1, causes)
				}
			}
			if t.Failed() {
				t.Logf("log:\n%s", a.log.String())
			}
		})
	}
}

// A server that is unreachable at the start is retried.
func TestUnreachableAtStart(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	s.Stop()
	a := start(t, s.URL())
	a.PublishWake("", "")
	if err := a.Trouble(); err == nil {
		t.Error("no trouble")
	}
	s.Start()
	a.until(true)
	a.PublishWake("", "")
	a.wakesUp()
}

// Publishing never waits for Redis, and the queue is limited.
func TestPublishNeverWaits(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	a := start(t, s.URL())
	a.until(true)
	s.Freeze()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range 50 * maxQueue {
			a.PublishEvent(string(id(1)), id(n))
		}
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatal("it waits")
	}
	if a.Dropped() < 40*maxQueue {
		t.Errorf("only %d were dropped", a.Dropped())
	}
	s.Thaw()
	for want, end := fmt.Sprint(id(1), " ", id(100_000)), time.Now().Add(limit); ; {
		a.PublishEvent(string(id(1)), id(100_000)) // until the queue has room for it
		select {
		case got := <-a.events:
			if got == want {
				return
			}
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("nothing is published any more")
		}
	}
}

// Foreign messages are ignored.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	a := start(t, s.URL())
	a.until(true)
	good := fmt.Sprintf(`{"id":"%s","owner":"%s"}`, id(1), id(9))
	for channel, payload := range map[string]string{
		"codehub:sse:" + string(id(1)): "x",
		"codehub:sse:" + string(id(2)): `{"id":"' OR 1"}`,
		"codehub:sse:":                 good,
		"codehub:sse:me":               good,
		"codehub:sse":                  good,
		"other:sse:" + string(id(1)):   good,
		"codehub:wake:ob":              good,
	} {
		s.Do("PUBLISH", channel, payload)
	}
	s.Do("PUBLISH", "codehub:sse:"+string(id(3)), good) // the channel identifies the owner
	select {
	case got := <-a.events:
		if want := fmt.Sprint(id(3), " ", id(1)); got != want {
			t.Errorf("heard %s, want %s", got, want)
		}
	case <-time.After(limit):
		t.Fatal("no event")
	}
	if len(a.events)+len(a.wakes) != 0 {
		t.Errorf("%d events, %d wakes more", len(a.events), len(a.wakes))
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
