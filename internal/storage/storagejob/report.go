package storagejob

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

const (
	// Progress is reported at most this often: often at first, so that short
	// jobs show some, and less often later, so that the report of a long job
	// stays short.
	reportEvery    = 250 * time.Millisecond
	reportAtLeast  = 2 * time.Second
	reportSlowdown = 200 // at most 200 reports for the elapsed time

	// heartbeat is after how long unchanged progress is reported again.
	heartbeat = 5 * time.Second
)

// reporter writes the events of a job. A slow reader delays only the last one.
type reporter struct {
	out     io.Writer
	began   time.Time
	mu      sync.Mutex
	present Progress

	stop chan struct{}
	done chan struct{}
}

func newReporter(out io.Writer) *reporter {
	return &reporter{out: out, began: time.Now()}
}

// start begins a step. Totals of 0 are unknown.
func (r *reporter) start(step string, bytes, entries int64) {
	r.present = Progress{Step: step, BytesTotal: bytes, EntriesTotal: entries}
	r.stop, r.done = make(chan struct{}), make(chan struct{})
	go r.loop()
}

// next begins a further step, with the totals of the one before.
func (r *reporter) next(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.present = Progress{Step: step, BytesTotal: r.present.BytesTotal, EntriesTotal: r.present.EntriesTotal}
}

// progress is an archive.Progress.
func (r *reporter) progress(bytes, entries int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.present.Bytes, r.present.Entries = bytes, entries
}

// total sets the totals of the step.
func (r *reporter) total(bytes, entries int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.present.BytesTotal, r.present.EntriesTotal = bytes, entries
}

func (r *reporter) get() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.present
}

func (r *reporter) loop() {
	defer close(r.done)
	var last Progress
	var at time.Time // of the last report
	ticks := time.NewTicker(reportEvery)
	defer ticks.Stop()
	for {
		every := min(max(reportEvery, time.Since(r.began)/reportSlowdown), reportAtLeast)
		now := time.Now().Add(reportEvery / 4) // a tick may be slightly early
		if p := r.get(); now.After(at.Add(heartbeat)) || p != last && now.After(at.Add(every)) {
			last, at = p, time.Now()
			r.write(Event{Progress: &last})
		}
		select {
		case <-ticks.C:
		case <-r.stop:
			return
		}
	}
}

// finish writes the last event.
func (r *reporter) finish(result Result) {
	if r.stop != nil {
		close(r.stop)
		<-r.done
		if result.Error == nil {
			// The estimate is replaced by the result.
			p := r.get()
			p.Bytes, p.Entries = result.Stats.Bytes, result.Stats.Entries
			p.BytesTotal, p.EntriesTotal = p.Bytes, p.Entries
			r.write(Event{Progress: &p})
		}
	}
	r.write(Event{Result: &result})
}

// write writes one line and ignores errors, which mean that the report has no reader.
func (r *reporter) write(e Event) {
	b, err := json.Marshal(e)
	if err != nil { // cannot fail for these types
		panic(err)
	}
	_, _ = r.out.Write(append(b, '\n'))
}
