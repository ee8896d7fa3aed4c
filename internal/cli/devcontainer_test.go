package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/client"
)

// builder is a server whose builds go one step further with each request.
type builder struct {
	mu    sync.Mutex
	steps []api.DevcontainerBuild // the first one is shown
	used  bool
}

func (s *builder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var answer any = api.Workspace{Name: "api"}
	switch {
	case r.Method == http.MethodPost:
		s.used = true
		w.WriteHeader(http.StatusAccepted)
	case strings.HasSuffix(r.URL.Path, "/build") && !s.used:
		w.WriteHeader(http.StatusNotFound)
		answer = api.Error{Code: "not_found", Message: "The build was not found."}
	case strings.HasSuffix(r.URL.Path, "/build"):
		answer = s.steps[0]
		if len(s.steps) > 1 {
			s.steps = s.steps[1:]
		}
	default:
		answer = api.Workspace{Name: "api", Devcontainer: &api.WorkspaceDevcontainer{File: ".devcontainer.json"}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// The command that uses a file prints each line of the build's log once, although the server keeps
// only its end, and reports how the build ended.
func TestUseFollowsBuild(t *testing.T) {
	t.Parallel()
	began := time.Now().Add(-time.Minute)
	at := func(state, log, text string) api.DevcontainerBuild {
		b := api.DevcontainerBuild{File: ".devcontainer.json", State: state, Log: log, Error: text, StartedAt: began}
		if state != "waiting" && state != "building" {
			b.EndedAt = &began
		}
		return b
	}
	for name, c := range map[string]struct {
		steps        []api.DevcontainerBuild
		printed, err string
	}{
		"done": {
			[]api.DevcontainerBuild{at("waiting", "", ""), at("waiting", "", ""), at("building", "one\ntw", ""), at("done", "ne\ntwo\x1b[31m\nthree", "")},
			"waiting for other builds\none\ntwo[31m\nthree\n", "",
		},
		"failed":   {[]api.DevcontainerBuild{at("building", "", ""), at("failed", "x\n", "A step of the Dockerfile failed.")}, "x\n", "the build failed: A step of the Dockerfile failed."},
		"canceled": {[]api.DevcontainerBuild{at("building", "", ""), at("canceled", "", "")}, "", "the build ended: cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(&builder{steps: c.steps})
			defer srv.Close()
			server, err := client.New(srv.URL, "")
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			w, building, err := environmentCmd{Use: ".devcontainer.json"}.use(t.Context(), &out, server, "id")
			switch {
			case out.String() != c.printed || building:
				t.Errorf("%q, %v", out.String(), building)
			case c.err == "" && (err != nil || w.Devcontainer == nil), c.err != "" && (err == nil || err.Error() != c.err):
				t.Errorf("%v, %+v", err, w)
			}
		})
	}
}

// A command that is interrupted leaves the build running; with --no-wait it does not wait.
func TestUseLeavesBuild(t *testing.T) {
	t.Parallel()
	connect := func() *client.Client {
		srv := httptest.NewServer(&builder{steps: []api.DevcontainerBuild{{State: "building", Log: "x\n", StartedAt: time.Now()}}})
		t.Cleanup(srv.Close)
		server, err := client.New(srv.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		return server
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, _, err := environmentCmd{Use: "x"}.use(ctx, &stopAfter{stop: cancel}, connect(), "id")
	if err == nil || !strings.Contains(err.Error(), "the build continues") {
		t.Errorf("%v", err)
	}
	if _, building, err := (environmentCmd{Use: "x", NoWait: true}).use(t.Context(), &bytes.Buffer{}, connect(), "id"); err != nil || !building {
		t.Errorf("%v, %v", building, err)
	}
}

func TestAddedLog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ earlier, now, want string }{
		{"", "a\n", "a\n"}, {"a\n", "a\n", ""}, {"a\n", "a\nb\n", "b\n"}, {"a\nb\n", "b\nc\n", "c\n"}, {"a\n", "c\n", "c\n"}, {"a\nb\n", "\nb\nc\n", "c\n"},
	} {
		if got := added(c.earlier, c.now); got != c.want {
			t.Errorf("%q after %q: %q, want %q", c.now, c.earlier, got, c.want)
		}
	}
}
