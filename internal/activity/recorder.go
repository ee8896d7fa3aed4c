package activity

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/workspace"
)

// Recorder keeps in memory when each workspace was last used, as this process
// saw it. It is safe for concurrent use, and a nil one records nothing.
type Recorder struct {
	// start is what times count from: one word then holds a time and a kind.
	// It carries a monotonic reading, and so does every time given out: ages
	// are right whatever becomes of the wall clock.
	start time.Time
	// taken counts the calls of Since, for Touch.
	taken atomic.Uint64

	mu sync.Mutex // taken where connections begin and end, never by Touch
	by map[workspace.ID]*entry
}

// entry is one workspace.
type entry struct {
	id   workspace.ID
	last atomic.Uint64 // a stamp; 0 is never
	held int           // marks that are not released; guarded by Recorder.mu
}

// New returns a recorder that has seen nothing.
func New() *Recorder {
	return &Recorder{start: time.Now(), by: map[workspace.ID]*entry{}}
}

// Mark is what a connection records the use of its workspace with.
type Mark struct {
	recorder *Recorder
	entry    *entry
	release  sync.Once
}

// Mark returns a mark of the workspace. The caller releases it when its
// connection ends.
func (r *Recorder) Mark(id workspace.ID) *Mark {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.by[id]
	if e == nil {
		e = &entry{id: id}
		r.by[id] = e
	}
	e.held++
	return &Mark{recorder: r, entry: e}
}

// Release says that the connection has ended. What it recorded stays until
// Forget. Again, it does nothing.
func (m *Mark) Release() {
	if m == nil {
		return
	}
	m.release.Do(func() {
		m.recorder.mu.Lock()
		defer m.recorder.mu.Unlock()
		if m.entry.held--; m.entry.held == 0 && m.entry.last.Load() == 0 {
			delete(m.recorder.by, m.entry.id)
		}
	})
}

// Touch records that the workspace is used now. It takes no lock and
// allocates nothing; connections of different workspaces write nothing in
// common. Not to be called after Release.
//
// What Since did not give out is dated after it was called: otherwise a time
// that was read before and stored after would be older than what its caller
// then takes for watched, and be lost.
func (m *Mark) Touch(kind Kind) {
	if m == nil {
		return
	}
	number := numberOf(kind)
	for {
		taken := m.recorder.taken.Load()
		m.entry.advance(stampOf(time.Since(m.recorder.start), number))
		if m.recorder.taken.Load() == taken {
			return
		}
	}
}

// advance stores what is later than what is there.
func (e *entry) advance(stamp uint64) {
	for {
		last := e.last.Load()
		if last >= stamp || e.last.CompareAndSwap(last, stamp) {
			return
		}
	}
}

// Since returns the last use of every workspace that was used at t or later,
// in no order. A use that is not among them is dated later than this call, so
// that whoever calls again with a time from before this call misses none.
func (r *Recorder) Since(t time.Time) []Access {
	if r == nil {
		return nil
	}
	r.taken.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	from := t.Sub(r.start)
	var seen []Access
	for _, e := range r.by {
		if a, ok := r.access(e); ok && a.At.Sub(r.start) >= from {
			seen = append(seen, a)
		}
	}
	return seen
}

// Last returns the last use of a workspace, and false if none is in memory.
func (r *Recorder) Last(id workspace.ID) (Access, bool) {
	if r == nil {
		return Access{}, false
	}
	r.mu.Lock()
	e := r.by[id]
	r.mu.Unlock()
	if e == nil {
		return Access{}, false
	}
	return r.access(e)
}

// Forget drops what was used before a time, which has been handed on, of
// workspaces that nobody is connected to.
func (r *Recorder) Forget(before time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := before.Sub(r.start)
	for id, e := range r.by {
		if e.held > 0 {
			continue
		}
		if a, ok := r.access(e); !ok || a.At.Sub(r.start) < limit {
			delete(r.by, id)
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

// kindBits is what a kind takes of a stamp; what is left holds 36 years.
const kindBits = 3

func stampOf(after time.Duration, kind uint64) uint64 {
	return uint64(min(max(after, 0), math.MaxInt64>>kindBits))<<kindBits | kind
}

func readStamp(stamp uint64) (time.Duration, Kind) {
	return time.Duration(stamp >> kindBits), kinds[stamp&(1<<kindBits-1)]
}
