package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// tickTimes is a database without workspaces that records the times of ticks.
type tickTimes struct {
	Rows
	mu   sync.Mutex
	at   []time.Time
	took time.Duration // of each tick
}

func (r *tickTimes) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	r.mu.Lock()
	r.at = append(r.at, time.Now())
	took := r.took
	r.mu.Unlock()
	return nil, pause(ctx, took)
}

func (r *tickTimes) Clock() postgres.Clock { return postgres.Clock{Now: time.Now(), At: time.Now()} }

func (r *tickTimes) RestartWaits(context.Context) error { return nil }

func (r *tickTimes) SaveOrphans(context.Context, []postgres.Orphan) ([]postgres.Orphan, error) {
	return nil, nil
}

func (r *tickTimes) Do(context.Context, func(context.Context, *pgx.Conn) error) error {
	return errors.New("not used")
}

// since returns the seconds from start to each tick after it.
func (r *tickTimes) since(start time.Time) (seconds []float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.at {
		if !at.Before(start) {
			seconds = append(seconds, at.Sub(start).Seconds())
		}
	}
	return seconds
}

type emptyBucket struct{ Archives }

func (emptyBucket) Key(workspace.ID, string) string { return "key" }

func (emptyBucket) Meta(context.Context, string) (*archive.Meta, error) { return &archive.Meta{}, nil }

func pacedController() *Controller {
	return New(Config{
		Archives: emptyBucket{}, Runtime: runtimetest.NewFake(), Policy: lifecycle.DefaultPolicy(), Log: slog.New(slog.DiscardHandler),
		Settings: Settings{IdleInterval: 15 * time.Second, ActiveInterval: time.Second, ActiveFor: 30 * time.Second},
	})
}

// TestTicksAfterWake: ticks come every 15 s, at once after a wake, every second for
// 30 s after it, and then every 15 s again.
func TestTicksAfterWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, rows := pacedController(), &tickTimes{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		start := time.Now()
		go func() { done <- c.Run(ctx, rows) }()
		time.Sleep(61 * time.Second)
		if d := cmp.Diff([]float64{0, 15, 30, 45, 60}, rows.since(start)); d != "" {
			t.Errorf("before a wake: %s", d)
		}
		woken := time.Now()
		c.Wake()
		time.Sleep(61 * time.Second)
		var want []float64
		for second := range 31 {
			want = append(want, float64(second))
		}
		want = append(want, 45, 60)
		if d := cmp.Diff(want, rows.since(woken)); d != "" {
			t.Errorf("after a wake: %s", d)
		}
		// A second wake during the active time extends it.
		woken = time.Now()
		c.Wake()
		time.Sleep(20 * time.Second)
		c.Wake()
		time.Sleep(29500 * time.Millisecond)
		if got := rows.since(woken); len(got) != 50 && len(got) != 51 {
			t.Errorf("%d ticks in 49.5 s with two wakes: %v", len(got), got)
		}
		time.Sleep(time.Minute)
		got := rows.since(woken)
		if last := got[len(got)-2:]; last[1]-last[0] != 15 {
			t.Errorf("the pace after two wakes: %v", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestSlowTicksBackOff: after a slow tick, wakes do not start the next one at once. The pause
// is three times the duration of the tick, and at most the active interval.
func TestSlowTicksBackOff(t *testing.T) {
	for took, pause := range map[time.Duration]time.Duration{
		10 * time.Millisecond:  0,
		100 * time.Millisecond: 300 * time.Millisecond,
		600 * time.Millisecond: time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			c, rows := pacedController(), &tickTimes{took: took}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- c.Run(ctx, rows) }()
			start := time.Now()
			for time.Since(start) < 30*time.Second {
				c.Wake()
				time.Sleep(time.Millisecond)
			}
			at := rows.since(start)
			var apart []float64
			for i := range at[1:] {
				apart = append(apart, at[i+1]-at[i])
			}
			// A wake comes within a millisecond of the tick's end.
			if least, most := slices.Min(apart), slices.Max(apart); least < (took+pause).Seconds()-1e-6 || most > (took+pause).Seconds()+0.002 {
				t.Errorf("ticks of %s are %.3f to %.3f s apart, want %.3f", took, least, most, (took + pause).Seconds())
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
