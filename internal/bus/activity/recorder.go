package activity

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/workspace"
)

// Recorder keeps the last use of each workspace in memory, as observed by this
// process. It is safe for concurrent use, and a nil Recorder records nothing.
type Recorder struct {
	// start is the origin of the stamps, so that one word holds a time and a kind.
	// It has a monotonic reading, so ages are independent of the wall clock.
	start time.Time
	// sinceCalls counts the calls of Since, for Touch.
	sinceCalls atomic.Uint64

	mu      sync.Mutex // taken when connections begin and end, never by Touch
	entries map[workspace.ID]*entry
}

// entry is the record of one workspace.
type entry struct {
	id   workspace.ID
	last atomic.Uint64 // a stamp; 0: never used
	held int           // unreleased marks; guarded by Recorder.mu
}

// New returns an empty recorder.
func New() *Recorder {
	return &Recorder{start: time.Now(), entries: map[workspace.ID]*entry{}}
}

// Mark records the use of a workspace by one connection.
type Mark struct {
	recorder *Recorder
	entry    *entry
	release  sync.Once
}

// Mark returns a mark of the workspace. The caller must release it when its
// connection ends.
func (r *Recorder) Mark(id workspace.ID) *Mark {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[id]
	if e == nil {
		e = &entry{id: id}
		r.entries[id] = e
	}
	e.held++
	return &Mark{recorder: r, entry: e}
}

// Release must be called when the connection ends. What it recorded stays until
// Forget. Further calls do nothing.
func (m *Mark) Release() {
	if m == nil {
		return
	}
	m.release.Do(func() {
		m.recorder.mu.Lock()
		defer m.recorder.mu.Unlock()
		if m.entry.held--; m.entry.held == 0 && m.entry.last.Load() == 0 {
			delete(m.recorder.entries, m.entry.id)
		}
	})
}

// Touch records that the workspace is used now. It takes no lock and does not
// allocate, and connections of different workspaces write no common memory. It must
// not be called after Release.
//
// It retries if Since was called meanwhile: otherwise a time taken before that call
// and stored after it would be earlier than what the caller of Since considers
// observed, and would be lost.
func (m *Mark) Touch(kind Kind) {
	if m == nil {
		return
	}
	number := numberOf(kind)
	for {
		taken := m.recorder.sinceCalls.Load()
		m.entry.advance(stampOf(time.Since(m.recorder.start), number))
		if m.recorder.sinceCalls.Load() == taken {
			return
		}
	}
}

// advance stores the stamp if it is later than the current one.
func (e *entry) advance(stamp uint64) {
	for {
		last := e.last.Load()
		if last >= stamp || e.last.CompareAndSwap(last, stamp) {
			return
		}
	}
}

// Since returns the last use of every workspace used at t or later, in no
// particular order. A use that it does not return is dated after this call, so a
// later call with an earlier time misses none.
func (r *Recorder) Since(t time.Time) []Access {
	if r == nil {
		return nil
	}
	r.sinceCalls.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	from := t.Sub(r.start)
	var seen []Access
	for _, e := range r.entries {
		if a, ok := r.access(e); ok && a.At.Sub(r.start) >= from {
			seen = append(seen, a)
		}
	}
	return seen
}

// Last returns the last use of a workspace, and false if there is none in memory.
func (r *Recorder) Last(id workspace.ID) (Access, bool) {
	if r == nil {
		return Access{}, false
	}
	r.mu.Lock()
	e := r.entries[id]
	r.mu.Unlock()
	if e == nil {
		return Access{}, false
	}
	return r.access(e)
}

// Forget drops flushed activity before the given time, of workspaces without
// connections.
func (r *Recorder) Forget(before time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := before.Sub(r.start)
	for id, e := range r.entries {
		if e.held > 0 {
			continue
		}
		if a, ok := r.access(e); !ok || a.At.Sub(r.start) < limit {
			delete(r.entries, id)
		}
	}
}

func (r *Recorder) access(e *entry) (Access, bool) {
	stamp := e.last.Load()
	if stamp == 0 {
		return Access{}, false
	}
	after, kind := readStamp(stamp)
	return Access{ID: e.id, At: r.start.Add(after), Kind: kind}, true
}

// kinds are numbered from 1, so that no stamp is 0.
var kinds = [...]Kind{1: Open, Presence, Typing, Output, Client, Stay}

func numberOf(kind Kind) uint64 {
	switch kind {
	case Open:
		return 1
	case Presence:
		return 2
	case Typing:
		return 3
	case Output:
		return 4
	case Stay:
		return 6
	}
	return 5
}

// kindBits is the size of the kind in a stamp; the rest holds 36 years.
const kindBits = 3

func stampOf(after time.Duration, kind uint64) uint64 {
	return uint64(min(max(after, 0), math.MaxInt64>>kindBits))<<kindBits | kind
}

func readStamp(stamp uint64) (time.Duration, Kind) {
	return time.Duration(stamp >> kindBits), kinds[stamp&(1<<kindBits-1)]
}
