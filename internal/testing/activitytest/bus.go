// Package activitytest provides an in-memory bus for tests, and the conformance
// suite of activity.Bus.
package activitytest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/workspace"
)

// Bus is an in-memory activity.Bus that can lose its content and fail.
type Bus struct {
	mu    sync.Mutex
	epoch int
	seen  map[workspace.ID]activity.Access
	err   error
}

var _ activity.Bus = (*Bus)(nil)

// NewBus returns an empty bus.
func NewBus() *Bus { return &Bus{seen: map[workspace.ID]activity.Access{}} }

// Lose drops the content and begins a new epoch.
func (b *Bus) Lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch++
	clear(b.seen)
}

// Fail makes every call return err; nil ends that.
func (b *Bus) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// Add implements activity.Bus.
func (b *Bus) Add(_ context.Context, seen []activity.Access) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return "", b.err
	}
	for _, a := range seen {
		a.At = a.At.Truncate(time.Millisecond)
		if was, ok := b.seen[a.ID]; !ok || a.At.After(was.At) {
			b.seen[a.ID] = a
		}
	}
	return b.name(), nil
}

// Read implements activity.Bus.
func (b *Bus) Read(context.Context) ([]activity.Access, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, "", b.err
	}
	list := slices.SortedFunc(maps.Values(b.seen), func(a, c activity.Access) int { return strings.Compare(string(a.ID), string(c.ID)) })
	return list, b.name(), nil
}

// Remove implements activity.Bus.
func (b *Bus) Remove(_ context.Context, seen []activity.Access) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	for _, a := range seen {
		if was, ok := b.seen[a.ID]; ok && !was.At.After(a.At) {
			delete(b.seen, a.ID)
		}
	}
	return nil
}

func (b *Bus) name() string { return fmt.Sprintf("epoch-%d", b.epoch) }
