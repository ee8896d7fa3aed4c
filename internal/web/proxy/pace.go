package proxy

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/gateway/shortway"
)

// While other people type, the transfers of one user together are limited to bulkRate: a
// transfer that never waits keeps a processor, and keystrokes have to wait for it; see
// docs/adr/0017.
const (
	// bulkRate is in bytes per second and processor.
	bulkRate = 100 << 20
	// bulkBurst is how much a user who has transferred less transfers without a limit, such
	// as the files of a page.
	bulkBurst = 16 << 20
	// bulkPiece is the size from which what is relayed at once counts as part of a
	// transfer. Keystrokes and their echo are smaller.
	bulkPiece = 4 << 10
	// typesFor is how long someone counts as typing after a keystroke.
	typesFor = 5 * time.Second
	// paceStep is the shortest pause, and paceMax the longest.
	paceStep = time.Millisecond
	paceMax  = 100 * time.Millisecond
)

// pace limits transfers while others type.
type pace struct {
	rate  int64 // bytes per second
	sleep func(time.Duration)

	mu           sync.Mutex // for writing
	last, before atomic.Pointer[typist]
}

// typist is a user who has typed.
type typist struct {
	user string
	at   int64 // Unix nanoseconds
}

func newPace() *pace {
	return &pace{rate: bulkRate * int64(goruntime.GOMAXPROCS(0)), sleep: time.Sleep}
}

// typed notes that a user types. last and before are the two users who typed last.
func (p *pace) typed(user string, now int64) {
	const enough = typesFor / 10
	if last := p.last.Load(); last != nil && last.user == user && within(now-last.at, enough) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.last.Load(); last != nil && last.user != user {
		p.before.Store(last)
	}
	p.last.Store(&typist{user, now})
	shortway.Hurry(typesFor)
}

// othersType reports whether another user than this one types.
func (p *pace) othersType(user string, now int64) bool {
	for _, t := range []*typist{p.last.Load(), p.before.Load()} {
		if t != nil && t.user != user && within(now-t.at, typesFor) {
			return true
		}
	}
	return false
}

// within reports whether an age in nanoseconds is less than most. The clock may have been
// set back meanwhile.
func within(age int64, most time.Duration) bool { return 0 <= age && age < int64(most) }

// account counts the open connections of a user, and what they have transferred.
type account struct {
	open int // connections; guarded by the lock of shard

	large atomic.Int32 // buffers, of shortway.Respond

	mu   sync.Mutex
	paid int64 // Unix nanoseconds until which the rate allows what was transferred
}

// charge counts n bytes, and returns for how long the transfer has to pause.
func (a *account) charge(n int, now, rate int64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paid = max(a.paid, now-nanoseconds(bulkBurst, rate)) + nanoseconds(n, rate)
	// Neither many connections nor a clock that was set back may lead to a debt.
	a.paid = min(a.paid, now+int64(paceMax))
	if ahead := time.Duration(a.paid - now); ahead >= paceStep {
		return ahead
	}
	return 0
}

// settled reports whether the account is as good as a new one.
func (a *account) settled(now, rate int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.paid <= now-nanoseconds(bulkBurst, rate)
}

// nanoseconds is how long n bytes take.
func nanoseconds(n int, rate int64) int64 { return int64(n) * int64(time.Second) / rate }

// moved notes that n bytes have passed, and pauses while others type and the user has
// transferred too much.
func (c *connection) moved(n int) {
	now := time.Now().UnixNano()
	c.transferred.Store(now)
	if n < bulkPiece || !c.pace.othersType(c.caller.UserID, now) {
		return
	}
	if pause := c.account.charge(n, now, c.pace.rate); pause > 0 {
		c.pace.sleep(pause)
	}
}
