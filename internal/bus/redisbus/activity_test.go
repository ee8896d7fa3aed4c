package redisbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codehub/internal/bus/activity"
	"codehub/internal/testing/activitytest"
	"codehub/internal/testing/redistest"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a bus at url until the test ends.
func open(t *testing.T, url string, opts ...func(*Config)) *Redis {
	t.Helper()
	cfg := Config{URL: url, Settings: Settings{SSEPrefix: "codehub:sse", WakePrefix: "codehub:wake", ActivityKey: "codehub:activity"}, Log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o(&cfg)
	}
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestActivity(t *testing.T) {
	t.Parallel()
	activitytest.Conformance(t, func(t *testing.T) activitytest.Subject {
		s := redistest.New(t)
		return activitytest.Subject{Bus: open(t, s.URL()), Other: open(t, s.URL()), Losses: map[string]func(*testing.T){
			"flush":    func(*testing.T) { s.Flush() },
			"restart":  func(*testing.T) { s.Restart() },
			"eviction": func(*testing.T) { s.Do("DEL", "codehub:activity") },
		}}
	})
}

// A restart from a snapshot restores old data, and the new epoch shows that later
// data may be missing.
func TestOldSnapshot(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	b := open(t, s.URL())
	at := time.UnixMilli(1_800_000_000_000)
	saved := activity.Access{ID: id(1), At: at, Kind: activity.Typing}
	before, err := b.Add(t.Context(), []activity.Access{saved})
	if err != nil {
		t.Fatal(err)
	}
	s.Do("SAVE")
	if _, err := b.Add(t.Context(), []activity.Access{{ID: id(2), At: at, Kind: activity.Typing}}); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	seen, after, err := b.Read(t.Context())
	if err != nil || len(seen) != 1 || seen[0] != saved {
		t.Errorf("after the restart: %v, %v", seen, err)
	}
	if before == after {
		t.Error("the epoch is the same")
	}
}

// Other members under the same key are neither read nor removed.
func TestForeignMembers(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	b := open(t, s.URL())
	s.Do("ZADD", "codehub:activity", "12", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
	seen, _, err := b.Read(t.Context())
	if err != nil || len(seen) != 0 {
		t.Errorf("read %v, %v", seen, err)
	}
	if _, err := b.Add(t.Context(), []activity.Access{{ID: id(1), Kind: activity.Open}}); err != nil {
		t.Errorf("a time before all times: %v", err)
	}
}

// Two installations with the same key do not mix their activity: the second gets an
// error, and the first continues.
func TestOtherInstallationIsRefused(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	mine := open(t, s.URL(), func(c *Config) { c.Installation = "mine" })
	other := open(t, s.URL(), func(c *Config) { c.Installation = "min" })
	seen := []activity.Access{{ID: id(1), At: time.UnixMilli(1_800_000_000_000), Kind: activity.Typing}}
	if _, err := mine.Add(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Add(t.Context(), nil); err == nil {
		t.Error("it added")
	}
	if _, _, err := other.Read(t.Context()); err == nil {
		t.Error("it read")
	}
	if err := other.Remove(t.Context(), seen); err == nil {
		t.Error("it removed")
	}
	var unusable *Unusable
	if err := other.Check(t.Context()); err == nil || errors.As(err, &unusable) {
		t.Errorf("the check says %v", err)
	}
	got, _, err := mine.Read(t.Context())
	if err != nil || len(got) != 1 {
		t.Errorf("the first one reads %v, %v", got, err)
	}
	c := s.Client()
	defer c.Close()
	for _, key := range mine.keys() { // the data of an abandoned database expires
		if ttl, err := c.TTL(t.Context(), key).Result(); err != nil || ttl <= 0 || ttl > time.Hour {
			t.Errorf("%s lives for %v, %v", key, ttl, err)
		}
	}
}

// A failing Redis delays calls by their time limit at most.
func TestActivityTimeout(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*redistest.Server){
		"frozen": (*redistest.Server).Freeze, "stopped": (*redistest.Server).Stop,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.New(t)
			b := open(t, s.URL())
			if _, err := b.Add(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			harm(s)
			done := make(chan error, 3)
			go func() { _, err := b.Add(context.Background(), nil); done <- err }()
			go func() { _, _, err := b.Read(context.Background()); done <- err }()
			go func() { done <- b.Remove(context.Background(), []activity.Access{{ID: id(1)}}) }()
			for range 3 {
				select {
				case err := <-done:
					if err == nil {
						t.Error("it worked")
					}
				case <-time.After(20 * time.Second):
					t.Fatal("still waiting")
				}
			}
		})
	}
}

// A loss during a long Add is detected: the returned epoch contains all of it.
func TestLossDuringAdd(t *testing.T) {
	t.Parallel()
	s := redistest.New(t)
	b := open(t, s.URL())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stop := make(chan struct{})
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				s.Flush()
			}
		}
	}()
	defer func() { close(stop); <-flushed }()
	many := make([]activity.Access, 50*maxPerScript)
	for i := range many {
		many[i] = activity.Access{ID: id(i), At: time.UnixMilli(1_800_000_000_000), Kind: activity.Open}
	}
	for ctx.Err() == nil {
		if _, err := b.Add(ctx, many); errors.Is(err, errLost) {
			return
		}
	}
	t.Error("no loss was noticed")
}

func id(n int) workspace.ID { return workspace.ID(fmt.Sprintf("0198c0de-0000-7000-8000-%012x", n)) }
