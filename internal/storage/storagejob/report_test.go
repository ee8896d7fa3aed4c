package storagejob

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/archive"
)

// timedLines is a writer that records when each line came.
type timedLines struct {
	mu    sync.Mutex
	began time.Time
	lines [][]byte
	at    []time.Duration
}

func (w *timedLines) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, bytes.Clone(p))
	w.at = append(w.at, time.Since(w.began))
	return len(p), nil
}

// all waits for all running goroutines and returns the lines.
func (w *timedLines) all() ([][]byte, []time.Duration) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines, w.at
}

// Progress is reported a few times a second at most, and less often the longer a job takes.
// Without progress there is a heartbeat that repeats the last report.
func TestReporter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &timedLines{began: time.Now()}
		r := newReporter(w)
		r.start("packing", 0, 0)
		for range 1000 { // ten seconds of progress
			p := r.get()
			r.progress(p.Bytes+100, p.Entries+1)
			time.Sleep(10 * time.Millisecond)
		}
		_, at := w.all()
		busy := len(at)
		if busy < 30 || busy > 45 {
			t.Fatalf("%d reports in ten seconds of progress", busy)
		}
		time.Sleep(time.Minute)
		lines, at := w.all()
		if n := len(at) - busy; n < 11 || n > 14 {
			t.Errorf("%d heartbeats in a minute", n)
		}
		for i := busy; i < len(at); i++ {
			if gap := at[i] - at[i-1]; gap > heartbeat+time.Second {
				t.Errorf("no report for %s", gap)
			}
		}
		if a, b := lines[len(lines)-1], lines[len(lines)-2]; !bytes.Equal(a, b) {
			t.Errorf("a heartbeat after %s is %s", b, a)
		}
		before := len(at)
		for range 7200 { // two hours of progress
			r.progress(r.get().Bytes+1, 1000)
			time.Sleep(time.Second)
		}
		if _, at = w.all(); len(at)-before < 1440 || len(at)-before > 7200*3/4 {
			t.Errorf("%d reports in two hours of progress", len(at)-before)
		}
		r.total(5_000_000, 3000)
		r.finish(Result{Claim: "c", Kind: "archive", Stats: archive.Stats{Bytes: 2_000_000, Entries: 2000}})
		rep := parseReport(t, 0, bytes.Join(w.lines, nil))
		last := rep.progress[len(rep.progress)-1]
		if last != (Progress{"packing", 2_000_000, 2_000_000, 2000, 2000}) || rep.result.Claim != "c" {
			t.Errorf("the last reports are %+v and %+v", last, rep.result)
		}
	})
}

// slowWriter takes a line only when the test allows it.
type slowWriter struct{ take chan struct{} }

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.take
	return len(p), nil
}

// A reader that does not read the report does not delay the job.
func TestSlowReaderDoesNotDelayJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &slowWriter{make(chan struct{})}
		r := newReporter(w)
		r.start("packing", 0, 0)
		for i := range int64(1000) {
			r.progress(i, i)
			time.Sleep(10 * time.Millisecond)
		}
		close(w.take)
		r.finish(Result{})
	})
}
