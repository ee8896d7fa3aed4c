package storagejob

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

const (
	// Progress is told this often at most: at first, so that short jobs show
	// some, and later, so that the report of a long one stays short.
	reportEvery    = 250 * time.Millisecond
	reportAtLeast  = 2 * time.Second
	reportSlowdown = 200 // a report at most every 200th of the time so far

	// heartbeat is after how long the same is told again: the job is alive.
	heartbeat = 5 * time.Second
)

// reporter writes the events of a job. Whoever is slow to read them delays
// nothing but the end.
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

// start begins to report a step. Totals of 0 are not known.
func (r *reporter) start(step string, bytes, entries int64) {
	r.present = Progress{Step: step, BytesTotal: bytes, EntriesTotal: entries}
	r.stop, r.done = make(chan struct{}), make(chan struct{})
	go r.loop()
}

// progress is an archive.Progress.
func (r *reporter) progress(bytes, entries int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.present.Bytes, r.present.Entries = bytes, entries
}

// total says how much there is to do in all.
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
		now := time.Now().Add(reportEvery / 4) // a tick may come a little early
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
			// What was estimated is known now.
			p := r.get()
			p.Bytes, p.Entries = result.Stats.Bytes, result.Stats.Entries
			p.BytesTotal, p.EntriesTotal = p.Bytes, p.Entries
			r.write(Event{Progress: &p})
		}
	}
	r.write(Event{Result: &result})
}

// write writes one line. If nobody reads any more there is nobody to tell.
func (r *reporter) write(e Event) {
	b, err := json.Marshal(e)
	if err != nil { // of these types: never
		panic(err)
	}
	_, _ = r.out.Write(append(b, '\n'))
}
