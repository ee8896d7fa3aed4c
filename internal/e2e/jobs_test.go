package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
)

// A job goes on while the server is down, and is found again by the next: the
// same container, begun once.
func TestJobOutlivesTheServer(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b, rng := open(t), seeded(t, 4)
			settings, p := b.settings, (*bucketProxy)(nil)
			if b.s3 != nil { // there it is held up at its last request, or in the middle of its only one
				p = newBucketProxy(t, b)
				settings = b.via(p.URL)
			}
			f := startFailing(t, append(settings, "CODEHUB_DELETE_GRACE=0s")...)
			begun := f.countJobs()
			id, home := f.filled("one", rng)
			for _, o := range []struct{ kind, wish string }{{"archive", "ARCHIVED"}, {"restore", "STANDBY"}} {
				ask := o.kind + ".job-started@" + id
				f.arm(ask, "hold")
				if p != nil {
					p.set(hangOnce(func(of string, r *http.Request) bool { return of == id && ofJob(o.kind, r) && f.jobRuns(o.kind, id) }))
				}
				f.want(id, o.wish)
				f.held(ask)
				if p != nil {
					p.hangs(id)
				}
				before, at := f.job(o.kind, id)
				f.Kill()
				if p == nil { // it needs nobody, and ends in the meantime
					f.jobEnds(o.kind, id)
				} else { // it waits for somebody who relays
					p.letGo()
					time.Sleep(3 * time.Second)
					if !f.jobRuns(o.kind, id) {
						t.Errorf("the %s job did not wait for the server", o.kind)
					}
				}
				if now, started := f.job(o.kind, id); now != before || started != at || before == "" {
					t.Errorf("the job was %s (%s), and is %s (%s) now", before, at, now, started)
				}
				f.somewhere(b, id, home)
				f.disarm()
				f.again()
				if o.kind == "archive" {
					f.archived(b, id, home)
				} else {
					f.restored(id, home)
				}
				if all := begun.of(o.kind, id); len(all) != 1 || all[0] != before {
					t.Errorf("%s jobs were started: %v, want %s alone", o.kind, all, before)
				}
			}
			f.discard(id)
		})
	}
}

// hangOnce has the first request that is meant hang.
func hangOnce(meant func(of string, r *http.Request) bool) func(string, int, *http.Request) fault {
	done := false
	return func(of string, _ int, r *http.Request) fault {
		if done || !meant(of, r) {
			return pass
		}
		done = true
		return hang
	}
}

// ofJob: the request by which an archive's upload becomes an object, or the
// download.
func ofJob(kind string, r *http.Request) bool {
	if kind == "archive" {
		return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
	}
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/home.tar.zst")
}

func (s *server) jobRuns(kind, id string) bool {
	c, err := s.docker.ContainerInspect(s.Context(), "codehub-"+kind+"-"+id, client.ContainerInspectOptions{})
	return err == nil && c.Container.State.Running
}

func (s *server) jobEnds(kind, id string) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for s.jobRuns(kind, id) {
		if time.Now().After(deadline) {
			s.Fatalf("the %s job of %s does not end", kind, id)
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

// A job is killed at its start, in its middle and at its end, told by what it
// asks of the bucket: it is done over, and only once.
func TestJobKilledWhileItWorks(t *testing.T) {
	t.Parallel()
	b, rng := s3Bucket(t), seeded(t, 5)
	p := newBucketProxy(t, b)
	s := startQuick(t, append(b.via(p.URL), "CODEHUB_DELETE_GRACE=0s")...)
	isMeta := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ".meta") }
	isPart := func(r *http.Request) bool { return r.URL.Query().Has("partNumber") }
	id, home := s.filled("one", rng)
	for _, c := range []struct {
		when, kind, wish string
		at               func(r *http.Request) bool
	}{
		{"start", "archive", "ARCHIVED", func(r *http.Request) bool { return r.Method == http.MethodPut && isPart(r) }},
		{"middle", "archive", "ARCHIVED", func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Query().Has("uploadId") }},
		{"end", "archive", "ARCHIVED", func(r *http.Request) bool { return r.Method == http.MethodPut && isMeta(r) }},
		{"middle", "restore", "STANDBY", func(r *http.Request) bool {
			return r.Method == http.MethodGet && !isMeta(r) && s.jobRuns("restore", id)
		}},
	} {
		s.want(id, map[string]string{"archive": "STANDBY", "restore": "ARCHIVED"}[c.kind])
		s.awaitPhase(id, map[string]string{"archive": "STANDBY", "restore": "ARCHIVED"}[c.kind])
		p.set(hangOnce(func(of string, r *http.Request) bool { return of == id && c.at(r) }))
		s.want(id, c.wish)
		p.hangs(id)
		s.killJob(c.kind, id)
		s.somewhere(b, id, home)
		p.letGo()
		w := s.await(id, c.wish+" in spite of the kill at its "+c.when, func(w api.Workspace) bool { return w.Phase == c.wish && w.Operation == "NONE" })
		if w.ErrorReason != nil {
			t.Errorf("%s, %s: an error is left: %s: %s", c.kind, c.when, *w.ErrorReason, str(w.ErrorMessage))
		}
		if c.kind == "archive" {
			s.archived(b, id, home)
		} else {
			s.restored(id, home)
		}
	}
	s.discard(id)
}

// A leader is killed in the middle of an archive and of a restore, and another
// server, which has a bucket's socket of its own, takes over: it does not wait
// for the first to come back.
func TestStandbyServerTakesOverJobs(t *testing.T) {
	t.Parallel()
	b, rng := s3Bucket(t), seeded(t, 16)
	p := newBucketProxy(t, b)
	settings := append(b.via(p.URL), "CODEHUB_DATABASE_URL="+database(t), "CODEHUB_DELETE_GRACE=0s")
	first := start(t, settings...)
	second := start(t, settings...)
	id, home := first.filled("one", rng)
	for _, o := range []struct{ kind, wish string }{{"archive", "ARCHIVED"}, {"restore", "STANDBY"}} {
		p.set(hangOnce(func(of string, r *http.Request) bool {
			return of == id && ofJob(o.kind, r) && second.jobRuns(o.kind, id)
		}))
		second.want(id, o.wish)
		p.hangs(id)
		first.Kill()
		p.letGo()
		if o.kind == "archive" {
			second.archived(b, id, home)
		} else {
			second.restored(id, home)
		}
		first.again() // which stands by now
		first, second = second, first
	}
	second.discard(id)
}
