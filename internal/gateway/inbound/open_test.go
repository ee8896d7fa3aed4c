package inbound

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// A connection without a login has few requests at a time. The first one of a user above
// the limit lifts it for the connection, and an exempt address has none.
func TestStreamsWithoutLogin(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		user, exempt bool
		refused      int
	}{
		"without a login": {refused: 10}, "of a user": {user: true}, "of a reverse proxy": {exempt: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			waiting, asked := 0, 0
			release := make(chan struct{})
			known := func(r *http.Request) bool {
				mu.Lock()
				defer mu.Unlock()
				asked++
				return r.Header.Get("Authorization") != ""
			}
			refuse := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }
			srv := httptest.NewUnstartedServer(LimitStreams(known, refuse, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/wait" {
					return
				}
				mu.Lock()
				waiting++
				mu.Unlock()
				<-release
			})))
			srv.EnableHTTP2 = true
			srv.Config.ConnContext = CountStreams(func(netip.Addr) bool { return test.exempt })
			srv.StartTLS()
			t.Cleanup(srv.Close)
			get := func(path string) (status int) {
				r, err := http.NewRequest("GET", srv.URL+path, nil)
				if err != nil {
					t.Error(err)
					return 0
				}
				if test.user {
					r.Header.Set("Authorization", "x")
				}
				res, err := srv.Client().Do(r)
				if err != nil || res.ProtoMajor != 2 {
					t.Errorf("%v, %v", res, err)
					return 0
				}
				defer res.Body.Close()
				_, _ = io.Copy(io.Discard, res.Body)
				return res.StatusCode
			}
			get("/") // all others use its connection
			statuses := make(chan int)
			const all = openStreams + 10
			for range all {
				go func() { statuses <- get("/wait") }()
			}
			for range test.refused {
				if status := <-statuses; status != http.StatusTooManyRequests {
					t.Errorf("above the limit: %d", status)
				}
			}
			harness.Eventually(t, "all others are served", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return waiting == all-test.refused
			})
			close(release)
			for range all - test.refused {
				if status := <-statuses; status != http.StatusOK {
					t.Errorf("within the limit: %d", status)
				}
			}
			// What has ended makes room, and only requests above the limit are asked for their user.
			status := get("/wait")
			mu.Lock()
			defer mu.Unlock()
			if status != http.StatusOK || test.user && asked > 10 || test.exempt && asked > 0 {
				t.Errorf("afterwards: %d, asked %d times", status, asked)
			}
		})
	}
}

// While many bodies do not end, Go collects garbage earlier, and afterwards as before. It does so
// for the whole process, so no other test runs at the same time.
func TestFloodCollectsGarbageEarlier(t *testing.T) {
	percent := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := percent()
	var bodies OpenBodies
	var reads sync.WaitGroup
	var ends []*io.PipeWriter
	defer func() {
		for _, end := range ends {
			end.Close()
		}
		reads.Wait()
		if now := percent(); now != before {
			t.Errorf("after the flood: %d %%, before it %d %%", now, before)
		}
	}()
	for range floodBodies {
		if now := percent(); now != before {
			t.Fatalf("%d %% with %d bodies, before it %d %%", now, len(ends), before)
		}
		body, end := io.Pipe()
		ends = append(ends, end)
		reads.Go(func() {
			_, _ = bodies.Read(httptest.NewRecorder(), httptest.NewRequest("POST", "/login", body), time.Minute)
		})
		if _, err := end.Write([]byte("x")); err != nil { // it is being read
			t.Fatal(err)
		}
	}
	if now := percent(); now != floodGC {
		t.Errorf("in a flood: %d %%, want %d %%", now, floodGC)
	}
}
