package activitytest_test

import (
	"errors"
	"testing"

	"codehub/internal/testing/activitytest"
)

func TestBus(t *testing.T) {
	t.Parallel()
	activitytest.Conformance(t, func(t *testing.T) activitytest.Subject {
		b := activitytest.NewBus()
		return activitytest.Subject{Bus: b, Other: b, Losses: map[string]func(*testing.T){"lose": func(*testing.T) { b.Lose() }}}
	})
}

func TestBusFailure(t *testing.T) {
	t.Parallel()
	b, down := activitytest.NewBus(), errors.New("down")
	b.Fail(down)
	_, err := b.Add(t.Context(), nil)
	_, _, err2 := b.Read(t.Context())
	for _, err := range []error{err, err2, b.Remove(t.Context(), nil)} {
		if !errors.Is(err, down) {
			t.Errorf("%v, want %v", err, down)
		}
	}
	b.Fail(nil)
	if _, err := b.Add(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
