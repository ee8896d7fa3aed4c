package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/control/replica"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
)

// takesNothing is a database that does not take what people did.
type takesNothing struct{ *postgres.DB }

func (takesNothing) SaveAccesses(context.Context, []activity.Access) error {
	return errors.New("busy")
}

// anotherClock is a database whose clock is an hour ahead of the server's.
type anotherClock struct{ *postgres.DB }

func (a anotherClock) FlushPoint(ctx context.Context) (activity.FlushPoint, error) {
	p, err := a.DB.FlushPoint(ctx)
	p.Now = p.Now.Add(time.Hour)
	return p, err
}

// What a server says of the last use, and with it of when a workspace stops, is
// by the database's clock, whatever its own says.
func TestLastUseByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{}).DB
	log := slog.New(slog.DiscardHandler)
	self := replica.New(replica.Config{DB: db, Log: log})
	try(t, self.Join(t.Context()))
	used := activity.New()
	flush := activity.NewFlusher(activity.FlusherConfig{Memory: used, Store: anotherClock{db}, Replica: self.ID(), Log: log})
	try(t, flush.Flush(t.Context()))
	used.Mark("w").Touch(activity.Typing)
	last := lastUse(used, flush)
	if at, kind, ok := last("w"); !ok || kind != "typing" || time.Until(at) < 50*time.Minute {
		t.Errorf("%v: %s at %s", ok, kind, at)
	}
	if _, _, ok := last("v"); ok {
		t.Error("activity of a workspace without any")
	}
}

// After a failed last flush the server stays on the list, so that the leader declares it dead
// and treats the time since its previous flush as unwatched.
func TestServerStaysListedAfterFailedFlush(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{}).DB
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		store activity.FlushStore
		left  int // on the list
	}{{db, 0}, {takesNothing{db}, 1}} {
		self := replica.New(replica.Config{DB: db, Log: log})
		try(t, self.Join(t.Context()))
		s := &server{parts: parts{log: log, self: self}, flush: activity.NewFlusher(activity.FlusherConfig{
			Memory: activity.New(), Store: c.store, Replica: self.ID(), Log: log})}
		s.lastFlush(t.Context())
		s.leave(t.Context())
		list, err := db.Replicas(t.Context())
		try(t, err)
		if len(list) != c.left {
			t.Errorf("%d are left, want %d", len(list), c.left)
		}
	}
}
