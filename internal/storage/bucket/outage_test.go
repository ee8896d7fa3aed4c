package bucket

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace/lifecycle"
)

// started runs a job in the background.
func (f *fixture) started(t *testing.T, spec runtime.JobSpec, home string) <-chan storagejob.Result {
	result := make(chan storagejob.Result, 1)
	go func() { result <- f.run(t.Context(), t, spec, home) }()
	return result
}

// A job continues after an outage of the server.
func TestJobSurvivesServerOutage(t *testing.T) {
	t.Parallel()
	f := newS3Stopped(t, false)
	stop := f.relay(t)
	home, restored := homeOf(t, 50<<20), t.TempDir()
	before := archivetest.Snapshot(t, home)

	// During the upload: the third part finds no server.
	row := newRow()
	spec := f.archiveJob(t, row)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var n atomic.Int32
	f.proxy.on(func(w http.ResponseWriter, r *http.Request) bool {
		if isPart(r) && n.Add(1) == 3 {
			close(reached)
			<-goOn
		}
		return false
	})
	result := f.started(t, spec, home)
	<-reached
	stop()
	close(goOn)
	if listened(t.Context(), f.SocketDir) {
		t.Fatal("the relay is still listening")
	}
	time.Sleep(500 * time.Millisecond) // the outage is longer than the pause before the job's first retry
	stop = f.relay(t)
	made := <-result
	if made.Error != nil {
		t.Fatalf("%+v", made.Error)
	}
	row.ArchiveKey = f.Key(row.ID, row.OpID)
	_, err := f.ReadBack(t.Context(), row.ArchiveKey, made.Stats, nil)
	check(t, err)

	// During the download, in the middle of the object.
	reached = make(chan struct{})
	goOn = make(chan struct{})
	n.Store(0)
	f.proxy.on(func(w http.ResponseWriter, r *http.Request) bool {
		if n.Add(1) == 1 {
			f.proxy.next.ServeHTTP(&stopping{ResponseWriter: w, left: 20 << 20, reached: reached, goOn: goOn}, r)
			return true
		}
		return false
	})
	spec = f.restoreJob(t, row)
	n.Store(0)
	result = f.started(t, spec, restored)
	<-reached
	stop()
	close(goOn)
	f.relay(t)
	if r := <-result; r.Error != nil {
		t.Fatalf("%+v", r.Error)
	}
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
		t.Errorf("the restored home differs:\n%s", diff)
	}
	requests := f.proxy.requests()
	if last := requests[len(requests)-1]; last.Header.Get("Range") == "" || last.Header.Get("If-Match") == "" {
		t.Errorf("the download started over: %v", last.Header)
	}
}

// stopping is a response that stops in the middle.
type stopping struct {
	http.ResponseWriter
	left    int
	reached chan struct{}
	goOn    chan struct{}
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.left > 0 && s.left <= len(p) {
		close(s.reached)
		<-s.goOn
	}
	s.left -= len(p)
	return s.ResponseWriter.Write(p)
}

func (s *stopping) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// A bucket that keeps failing at any call is Unavailable and holds nothing that looks like an
// archive; the home is unchanged.
func TestBucketFails(t *testing.T) {
	t.Parallel()
	refuse := func(status int, code string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { return answer(w, r, status, code) }
	}
	when := func(which func(r *http.Request) bool, what func(w http.ResponseWriter, r *http.Request) bool) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { return which(r) && what(w, r) }
	}
	isMeta := func(r *http.Request) bool { return r.Method == http.MethodPut && filepath.Ext(r.URL.Path) == ".meta" }
	isComplete := func(r *http.Request) bool { return r.Method == http.MethodPost }
	isGet := func(r *http.Request) bool { return r.Method == http.MethodGet }
	cut := func(w http.ResponseWriter, r *http.Request) bool { panic(http.ErrAbortHandler) }
	// They mostly wait, so more of them run in parallel than there are cores.
	var all sync.WaitGroup
	defer all.Wait()
	few := []string{"parts cut", "complete reports an error with status 200", "meta 403", "get cut", "get gone", "damaged"}
	at := func(name string, test func(t *testing.T, f *fixture)) {
		if !harness.Verifying() && !slices.Contains(few, name) {
			return
		}
		all.Go(func() {
			t.Run(name, func(t *testing.T) { test(t, newS3(t)) })
		})
	}
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"parts 500":      when(isPart, refuse(500, "InternalError")),
		"parts 403":      when(isPart, refuse(403, "AccessDenied")),
		"parts cut":      when(isPart, cut),
		"full":           when(isPart, refuse(507, "XMinioStorageFull")),
		"complete 503":   when(isComplete, refuse(503, "SlowDown")),
		"complete fails": when(isComplete, refuse(404, "NoSuchUpload")),
		"complete reports an error with status 200": when(isComplete, refuse(200, "InternalError")),
		"meta 500": when(isMeta, refuse(500, "InternalError")),
		"meta 403": when(isMeta, refuse(403, "ExpiredToken")),
	} {
		at(name, func(t *testing.T, f *fixture) {
			row := newRow()
			spec := f.archiveJob(t, row)
			f.proxy.on(fault)
			result := f.run(t.Context(), t, spec, homeOf(t, 20<<20))
			if result.Error == nil || result.Error.Kind != storagejob.Unavailable {
				t.Errorf("the job ended with %+v", result.Error)
			}
			f.proxy.on(nil)
			row.ArchiveKey = f.Key(row.ID, row.OpID)
			if a, err := f.State(t.Context(), row); a != lifecycle.ArchiveMissing || err != nil {
				t.Errorf("State: %v, %v", a, err)
			}
			// The job has removed its upload, or AbortIncomplete does.
			_, err := f.AbortIncomplete(t.Context(), 0, nil)
			check(t, err)
			check(t, f.Delete(t.Context(), row.ArchiveKey))
			if list, err := f.List(t.Context()); err != nil || len(list) > 0 {
				t.Errorf("left: %v, %v", list, err)
			}
		})
	}
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"get 500": when(isGet, refuse(500, "InternalError")),
		"get 403": when(isGet, refuse(403, "AccessDenied")),
		"get 404": when(isGet, refuse(404, "NoSuchBucket")),
		"get cut": when(isGet, cut),
	} {
		at(name, func(t *testing.T, f *fixture) {
			row := f.archived(t, homeOf(t, 1<<20))
			spec := f.restoreJob(t, row)
			f.proxy.on(fault)
			restored := homeOf(t, 100)
			result := f.run(t.Context(), t, spec, restored)
			if result.Error == nil || result.Error.Kind != storagejob.Unavailable {
				t.Errorf("the job ended with %+v", result.Error)
			}
			if _, err := os.Stat(filepath.Join(restored, "file")); err != nil {
				t.Errorf("the home was cleared without an archive: %v", err)
			}
		})
	}
	at("get gone", func(t *testing.T, f *fixture) {
		row := f.archived(t, homeOf(t, 1<<20))
		spec := f.restoreJob(t, row)
		check(t, f.Store.Delete(t.Context(), row.ArchiveKey))
		result := f.run(t.Context(), t, spec, t.TempDir())
		if result.Error == nil || result.Error.Kind != storagejob.NotFound {
			t.Errorf("the job ended with %+v", result.Error)
		}
	})
	at("damaged", func(t *testing.T, f *fixture) {
		row := f.archived(t, homeOf(t, 1<<20))
		spec := f.restoreJob(t, row)
		f.put(t, row.ArchiveKey, randomBytes(int(row.ArchiveSize)))
		result := f.run(t.Context(), t, spec, t.TempDir())
		if result.Error == nil || result.Error.Kind != storagejob.Corrupted {
			t.Errorf("the job ended with %+v", result.Error)
		}
	})
	at("down", func(t *testing.T, f *fixture) {
		row := newRow()
		spec := f.archiveJob(t, row)
		f.proxy.Close()
		result := f.run(t.Context(), t, spec, homeOf(t, 1<<20))
		if result.Error == nil || result.Error.Kind != storagejob.Unavailable {
			t.Errorf("the job ended with %+v", result.Error)
		}
	})
}
