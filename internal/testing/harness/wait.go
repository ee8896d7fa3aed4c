package harness

import (
	"testing"
	"time"
)

// Patience is the timeout of waits. It is long, because a busy machine may need
// minutes for an operation of seconds; only a failing test takes that long. Use
// EventuallyWithin where a slower mechanism would lead to the same result.
const Patience = 4 * time.Minute

// Eventually waits up to Patience until ok returns true. what names the
// condition in the failure message.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	EventuallyWithin(t, Patience, what, ok)
}

// EventuallyWithin is Eventually with another timeout.
func EventuallyWithin(t testing.TB, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline, pause := time.Now().Add(bound), time.Millisecond; !ok(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not true after %v: %s", bound, what)
		}
		time.Sleep(pause)
	}
}

// Await polls state until ok accepts it, and returns it. Unlike EventuallyWithin
// it polls every few milliseconds, so that it does not miss short-lived states,
// and the failure message has the last state.
func Await[T any](t testing.TB, bound time.Duration, what string, state func() T, ok func(T) bool) T {
	t.Helper()
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		got := state()
		if ok(got) {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("not true after %v: %s; the last state is %+v", bound, what, got)
		}
	}
}
