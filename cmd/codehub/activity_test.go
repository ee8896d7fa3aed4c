package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"codehub/internal/activity"
	"codehub/internal/pgtest"
	"codehub/internal/postgres"
	"codehub/internal/replica"
)

// takesNothing is a database that does not take what people did.
type takesNothing struct{ *postgres.DB }

func (takesNothing) SaveAccesses(context.Context, []activity.Access) error {
	return errors.New("busy")
}

// A server that could not hand on what people did last does not leave the
// others as one that owes nothing: the leader is to find it dead, and to count
// the time since its last flush for nobody.
func TestLeavesOnlyWhenItOwesNothing(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(t.Context(), pgtest.New(t, postgres.Migrate), postgres.Options{})
	try(t, err)
	defer db.Close()
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		store activity.FlushStore
		left  int // on the list
	}{{db, 0}, {takesNothing{db}, 1}} {
		self := replica.New(replica.Config{DB: db, Log: log})
		try(t, self.Join(t.Context()))
		s := &server{log: log, self: self, flush: activity.NewFlusher(activity.FlusherConfig{
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
