package mark_test

import (
	"context"
	"testing"

	"codehub/internal/testing/harness"
)

// Package lease abandons a term that does not return in time, for example because an executor reads
// from a disk that does not respond. Its late return changes nothing for the next term.
func TestAbandonedTermReturns(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	k := i.keeper()
	release, began, returned := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx, end := context.WithCancel(t.Context())
	first, second := i.Controller(), i.Controller()
	go func() {
		returned <- k.Run(ctx, first, func(context.Context) error { close(began); <-release; return nil })
	}()
	<-began
	end()
	next, stop := context.WithCancel(t.Context())
	leads, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- k.Run(next, second, func(ctx context.Context) error { close(leads); <-ctx.Done(); return nil })
	}()
	t.Cleanup(func() { stop(); <-ended })
	<-leads
	harness.Eventually(t, "the next term removes", k.MayRemove)
	close(release)
	if err := <-returned; err != nil {
		t.Error(err)
	}
	if !k.MayRemove() {
		t.Error("the next term removes nothing any more")
	}
}
