package auth

import (
	"context"
	"errors"
	"testing"
	"time"
)

// limit limits a wait that is expected to end.
const limit = 30 * time.Second

func TestWatch(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	run, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(run) }()

	kept, gone := e.login(), e.login()
	a, stopA := e.Watch(t.Context(), kept.Caller.Session)
	b, stopB := e.Watch(t.Context(), gone.Caller.Session)
	b2, stopB2 := e.Watch(t.Context(), gone.Caller.Session)
	defer stopB2()
	if err := e.Logout(t.Context(), gone.Caller); err != nil {
		t.Fatal(err)
	}
	for _, ctx := range []context.Context{b, b2} {
		select {
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), ErrSessionEnded) {
				t.Error(context.Cause(ctx))
			}
		case <-time.After(limit):
			t.Fatal("the session's end was not noticed")
		}
	}
	if a.Err() != nil {
		t.Error("the other session was ended, too")
	}

	// Ended by the user in another session.
	other := e.login()
	c, stopC := e.Watch(t.Context(), other.Caller.Session)
	defer stopC()
	if n, err := e.EndOtherSessions(t.Context(), kept.Caller); err != nil || n < 1 {
		t.Fatal(n, err)
	}
	select {
	case <-c.Done():
		if !errors.Is(context.Cause(c), ErrSessionEnded) {
			t.Error(context.Cause(c))
		}
	case <-time.After(limit):
		t.Fatal("the end of another session was not noticed")
	}
	if a.Err() != nil {
		t.Error("the session that ended the others was ended, too")
	}
	stopC()

	// Ended without an event: the next revalidation detects it.
	e.Change(`DELETE FROM sessions`)
	select {
	case <-a.Done():
	case <-time.After(limit):
		t.Fatal("the session's end was not noticed without an event")
	}
	stopA()
	stopB()
	stopB2()
	if n := len(e.watches.by); n != 0 {
		t.Errorf("%d sessions are still watched", n)
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// While the database is not responding, no session ends.
func TestWatchWithoutDatabase(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	ctx, stop := e.Watch(t.Context(), s.Caller.Session)
	defer stop()
	e.DB.Close()
	if err := e.revalidate(t.Context()); err == nil {
		t.Error("a revalidation without a database succeeded")
	}
	if ctx.Err() != nil {
		t.Error("cut off")
	}
}
