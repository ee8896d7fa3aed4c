package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
)

// A storage job keeps running while the server is down. After the restart the
// server uses the same job and starts no other one.
func TestJobOutlivesTheServer(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b, rng := open(t), newRand(t, 4)
			settings, p := b.settings, (*bucketProxy)(nil)
			if b.s3 != nil { // the job hangs at its last upload request, or in the middle of the download
				p = newBucketProxy(t, b)
				settings = b.settingsVia(p.URL)
			}
			f := startWithFailpoints(t, append(settings, "CODEHUB_DELETE_GRACE=0s")...)
			started := f.countJobs()
			id, home := f.createFilled("one", rng)
			for _, o := range []struct{ kind, desired string }{{"archive", "ARCHIVED"}, {"restore", "STANDBY"}} {
				point := o.kind + ".job-started@" + id
				f.arm(point, "hold")
				if p != nil {
					p.setFault(hangOnce(func(of string, r *http.Request) bool {
						return of == id && isJobRequest(o.kind, r) && f.jobRuns(o.kind, id)
					}))
				}
				f.setDesired(id, o.desired)
				f.awaitHeld(point)
				if p != nil {
					p.awaitHanging(id)
				}
				before, at := f.job(o.kind, id)
				f.Kill()
				if p == nil { // a job with a folder does not need the server and ends
					f.awaitJobEnd(o.kind, id)
				} else { // a job with S3 waits for a server to relay its requests
					p.release()
					time.Sleep(3 * time.Second)
					if !f.jobRuns(o.kind, id) {
						t.Errorf("the %s job did not wait for the server", o.kind)
					}
				}
				if now, started := f.job(o.kind, id); now != before || started != at || before == "" {
					t.Errorf("the job was %s (started at %s), now it is %s (started at %s)", before, at, now, started)
				}
				f.expectCompleteCopy(b, id, home)
				f.disarm()
				f.restart()
				if o.kind == "archive" {
					f.awaitArchived(b, id, home)
				} else {
					f.awaitRestored(id, home)
				}
				if all := started.of(o.kind, id); len(all) != 1 || all[0] != before {
					t.Errorf("%s jobs were started: %v, want %s alone", o.kind, all, before)
				}
			}
			f.discard(id)
		})
	}
}

// hangOnce makes the first matching request hang.
func hangOnce(match func(workspace string, r *http.Request) bool) func(string, int, *http.Request) fault {
	done := false
	return func(workspace string, _ int, r *http.Request) fault {
		if done || !match(workspace, r) {
			return pass
		}
		done = true
		return hang
	}
}

// isJobRequest matches the request that completes the upload of an archive, or
// its download.
func isJobRequest(kind string, r *http.Request) bool {
	if kind == "archive" {
		return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
	}
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/home.tar.zst")
}

func (s *server) jobRuns(kind, id string) bool {
	c, err := s.docker.ContainerInspect(s.Context(), "codehub-"+kind+"-"+id, client.ContainerInspectOptions{})
	return err == nil && c.Container.State.Running
}

func (s *server) awaitJobEnd(kind, id string) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for s.jobRuns(kind, id) {
		if time.Now().After(deadline) {
			s.Fatalf("the %s job of %s has not ended", kind, id)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *server) killJob(kind, id string) {
	s.Helper()
	if _, err := s.docker.ContainerKill(s.Context(), "codehub-"+kind+"-"+id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		s.Fatal(err)
	}
}

// A storage job is killed at its start, in the middle and at its end, as seen
// by its requests to the bucket. It is repeated once.
func TestJobKilledWhileItWorks(t *testing.T) {
	t.Parallel()
	b, rng := s3Bucket(t), newRand(t, 5)
	p := newBucketProxy(t, b)
	s := startQuick(t, append(b.settingsVia(p.URL), "CODEHUB_DELETE_GRACE=0s")...)
	isMeta := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ".meta") }
	isPart := func(r *http.Request) bool { return r.URL.Query().Has("partNumber") }
	id, home := s.createFilled("one", rng)
	for _, c := range []struct {
		when, kind, desired string
		at                  func(r *http.Request) bool
	}{
		{"start", "archive", "ARCHIVED", func(r *http.Request) bool { return r.Method == http.MethodPut && isPart(r) }},
		{"middle", "archive", "ARCHIVED", func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Query().Has("uploadId") }},
		{"end", "archive", "ARCHIVED", func(r *http.Request) bool { return r.Method == http.MethodPut && isMeta(r) }},
		{"middle", "restore", "STANDBY", func(r *http.Request) bool {
			return r.Method == http.MethodGet && !isMeta(r) && s.jobRuns("restore", id)
		}},
	} {
		s.setDesired(id, map[string]string{"archive": "STANDBY", "restore": "ARCHIVED"}[c.kind])
		s.awaitPhase(id, map[string]string{"archive": "STANDBY", "restore": "ARCHIVED"}[c.kind])
		p.setFault(hangOnce(func(of string, r *http.Request) bool { return of == id && c.at(r) }))
		s.setDesired(id, c.desired)
		p.awaitHanging(id)
		s.killJob(c.kind, id)
		s.expectCompleteCopy(b, id, home)
		p.release()
		w := s.await(id, c.desired+" after the kill at the job's "+c.when, func(w api.Workspace) bool { return w.Phase == c.desired && w.Operation == "NONE" })
		if w.ErrorReason != nil {
			t.Errorf("%s job killed at its %s: error %s: %s", c.kind, c.when, *w.ErrorReason, str(w.ErrorMessage))
		}
		if c.kind == "archive" {
			s.awaitArchived(b, id, home)
		} else {
			s.awaitRestored(id, home)
		}
	}
	s.discard(id)
}

// The leader is killed during an archive and during a restore. Another server
// takes over and relays the bucket's requests through its own socket, without
// waiting for the first server.
func TestStandbyServerTakesOverJobs(t *testing.T) {
	t.Parallel()
	b, rng := s3Bucket(t), newRand(t, 16)
	p := newBucketProxy(t, b)
	settings := append(b.settingsVia(p.URL), "CODEHUB_DATABASE_URL="+database(t), "CODEHUB_DELETE_GRACE=0s")
	first := start(t, settings...)
	second := start(t, settings...)
	id, home := first.createFilled("one", rng)
	for _, o := range []struct{ kind, desired string }{{"archive", "ARCHIVED"}, {"restore", "STANDBY"}} {
		p.setFault(hangOnce(func(of string, r *http.Request) bool {
			return of == id && isJobRequest(o.kind, r) && second.jobRuns(o.kind, id)
		}))
		second.setDesired(id, o.desired)
		p.awaitHanging(id)
		first.Kill()
		p.release()
		if o.kind == "archive" {
			second.awaitArchived(b, id, home)
		} else {
			second.awaitRestored(id, home)
		}
		first.restart() // the first server is on standby now
		first, second = second, first
	}
	second.discard(id)
}
