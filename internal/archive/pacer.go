package archive

import (
	"context"
	"sync"
	"time"
)

const (
	// An access to the disk is slow if it takes longer than slowAccess and the time that its bytes need at slowRate.
	slowAccess = 30 * time.Millisecond
	slowRate   = 64 << 20 // bytes per second
	// restFactor is how much longer than a slow access the rest after it is. That leaves three quarters of the time of a
	// slow disk to others.
	restFactor = 3
	// longestRest keeps a disk that hangs for a moment from delaying the work for long.
	longestRest = 2 * time.Second
)

// Pacer makes the work that shares it rest after each slow access to the disk, so that others can use a slow disk
// meanwhile. A fast disk is used without a pause. Concurrent accesses rest together: all take at most four
// times as long as without a Pacer. A nil Pacer never rests.
type Pacer struct {
	mu    sync.Mutex
	until time.Time // end of the rest
}

// Begin waits until no rest is left or ctx ends, and returns the time at which the access begins.
func (p *Pacer) Begin(ctx context.Context) time.Time {
	if p == nil {
		return time.Time{}
	}
	for {
		now := time.Now()
		p.mu.Lock()
		left := p.until.Sub(now)
		p.mu.Unlock()
		if left <= 0 {
			return now
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return now
		}
	}
}

// End is called when an access to so many bytes is over. began is what Begin returned.
func (p *Pacer) End(began time.Time, bytes int64) {
	if p == nil {
		return
	}
	now := time.Now()
	took := now.Sub(began)
	if took <= slowAccess+time.Duration(bytes)*time.Second/slowRate {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := now.Add(min(restFactor*took, longestRest)); until.After(p.until) {
		p.until = until
	}
}
