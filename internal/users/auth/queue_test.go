package auth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"codehub/internal/workspace"
)

// wait adds a caller to a queue. The channel gets the result of take.
func wait(t *testing.T, q *queue, ctx context.Context, source string, n int) chan error {
	t.Helper()
	c := make(chan error, 1)
	go func() { c <- q.take(ctx, source) }()
	await(t, q, n)
	return c
}

// However many callers one source has, a caller from another source is the next but
// one.
func TestQueueTakesSourcesInTurn(t *testing.T) {
	t.Parallel()
	q := newQueue(1, 10, 100, time.Hour)
	if err := q.take(t.Context(), "flood"); err != nil {
		t.Fatal(err)
	}
	var order []string
	callers := map[string]chan error{}
	for i, name := range []string{"flood 1", "flood 2", "flood 3", "flood 4", "ann 1", "ben 1", "ann 2"} {
		callers[name] = wait(t, q, t.Context(), name[:len(name)-2], i+1)
	}
	for len(callers) > 0 {
		q.release()
		var next string
		for next == "" {
			for name, c := range callers {
				select {
				case err := <-c:
					if err != nil {
						t.Fatal(err)
					}
					next = name
				default:
				}
			}
		}
		delete(callers, next)
		order = append(order, next)
	}
	if want := []string{"flood 1", "ann 1", "ben 1", "flood 2", "ann 2", "flood 3", "flood 4"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	q.release()
	if q.busy != 0 || q.waiting != 0 || len(q.lines) != 0 || q.order.Len() != 0 {
		t.Errorf("left over: %d busy, %d waiting, %d lines", q.busy, q.waiting, len(q.lines))
	}
}

// A source that fills the queue loses its newest callers to others, and only them.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	q := newQueue(1, 4, 6, time.Hour)
	if err := q.take(t.Context(), "flood"); err != nil {
		t.Fatal(err)
	}
	var flood, others []chan error
	for i := range 4 {
		flood = append(flood, wait(t, q, t.Context(), "flood", i+1))
	}
	if err := q.take(t.Context(), "flood"); workspace.CodeOf(err) != workspace.CodeTooManyAttempts || !q.full("flood") || q.full("other") {
		t.Errorf("one more of a source: %v", err)
	}
	for i := range 2 {
		others = append(others, wait(t, q, t.Context(), fmt.Sprint("other ", i), 5+i))
	}
	for i := 2; i < 5; i++ {
		others = append(others, wait(t, q, t.Context(), fmt.Sprint("other ", i), 6))
		if err := <-flood[5-i]; workspace.CodeOf(err) != workspace.CodeTooManyAttempts {
			t.Errorf("the newest caller of the flood: %v", err)
		}
	}
	if err := q.take(t.Context(), "another"); workspace.CodeOf(err) != workspace.CodeTooManyAttempts {
		t.Errorf("when every line has one caller: %v", err)
	}
	for range 6 {
		q.release()
	}
	for _, c := range append(others, flood[0]) {
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
}

func TestQueueWaitIsBounded(t *testing.T) {
	t.Parallel()
	q := newQueue(1, 4, 6, time.Millisecond)
	if err := q.take(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := q.take(t.Context(), "b"); workspace.CodeOf(err) != workspace.CodeTooManyAttempts {
		t.Errorf("after the longest wait: %v", err)
	}
	q.patience = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	c := wait(t, q, ctx, "b", 1)
	cancel()
	if err := <-c; !errors.Is(err, context.Canceled) {
		t.Errorf("disconnected: %v", err)
	}
	q.release()
	if err := q.take(t.Context(), "c"); err != nil || q.waiting != 0 {
		t.Errorf("afterwards: %v, %d waiting", err, q.waiting)
	}
}

func TestSources(t *testing.T) {
	t.Parallel()
	source := func(s string) string {
		a, _ := netip.ParseAddr(s)
		return Client{Address: a}.source()
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true},
		{"2001:db8:0:1::1", "2001:db8:0:2::1", false},
		{"fe80::1%eth0", "fe80::1%eth1", true},
		{"::1", "127.0.0.1", false},
		{"", "nonsense", true},
	} {
		if same := source(c.a) == source(c.b); same != c.same {
			t.Errorf("%s and %s: %q and %q", c.a, c.b, source(c.a), source(c.b))
		}
	}
}
