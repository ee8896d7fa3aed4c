package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

func TestLogs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := string(e.workspace(e.ann, "a").ID)
	path := "/workspaces/" + id + "/logs"
	a := e.want(200, "", "GET", path+"?tail=5", "", as(e.ann))
	if a.body != "hello\n" || a.header.Get("Content-Type") != "text/plain; charset=utf-8" || a.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%q %s", a.body, a.header)
	}
	e.want(200, "", "GET", path, "", as(e.ann))
	e.want(200, "", "GET", path+"?tail=0", "", as(e.ann))
	if a := e.want(200, "", "HEAD", path, "", as(e.ann)); a.body != "" {
		t.Errorf("HEAD: %q", a.body)
	}
	e.want(403, "forbidden", "GET", path, "", as(e.eve))
	if got, want := fmt.Sprint(e.logs.calls), fmt.Sprintf("[%[1]s 5 false %[1]s 1000 false %[1]s 0 false %[1]s 1000 false]", id); got != want {
		t.Errorf("asked for %s, want %s", got, want)
	}
	for err, want := range map[error]struct {
		status int
		code   string
	}{
		fmt.Errorf("x: %w", runtime.ErrNotFound):    {404, "not_found"},
		fmt.Errorf("x: %w", runtime.ErrUnreachable): {503, "unavailable"},
		errors.New("secret words"):                  {500, "internal"},
	} {
		e.logs.err = err
		e.want(want.status, want.code, "GET", path, "", as(e.ann))
	}
}

// A log whose source fails midway does not end as if it were complete.
func TestCutLog(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.logs.cut = errors.New("the connection to Docker is lost")
	path := e.HTTP.URL + Prefix + "/workspaces/" + string(e.workspace(e.ann, "a").ID) + "/logs"
	for _, query := range []string{"", "?follow=true"} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", path+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		as(e.ann)(r)
		resp, err := e.HTTP.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "hello\n" || err == nil {
			t.Errorf("%q: %q, %v", query, body, err)
		}
	}
}

// follow follows the log at a path until its first line has come.
func (e *env) follow(ctx context.Context, path string, by with) *bufio.Reader {
	e.t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", e.HTTP.URL+Prefix+path+"/logs?follow=true", nil)
	if err != nil {
		e.t.Fatal(err)
	}
	by(r)
	resp, err := e.HTTP.Client().Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { resp.Body.Close() })
	body := bufio.NewReader(resp.Body)
	if line, err := body.ReadString('\n'); err != nil || line != "hello\n" {
		e.t.Fatalf("%q, %v", line, err)
	}
	return body
}

// A followed log is sent while it is printed, and ends with the session.
func TestFollowedLogs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	body := e.follow(ctx, "/workspaces/"+string(e.workspace(e.ann, "a").ID), as(e.ann))
	start := time.Now()
	e.want(204, "", "POST", "/logout", "", as(e.ann))
	if _, err := body.ReadString('\n'); err == nil || ctx.Err() != nil {
		t.Errorf("after the logout: %v after %v", err, time.Since(start))
	}
}

// An administrator who no longer is one does not go on reading another user's log.
func TestFollowedLogEndsWithTheRight(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(c *Config) { c.CheckEvery = 20 * time.Millisecond })
	e.Exec(`UPDATE users SET admin = true WHERE username = 'eve'`)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	body := e.follow(ctx, "/admin/workspaces/"+string(e.workspace(e.ann, "a").ID), as(e.eve))
	e.Exec(`UPDATE users SET admin = false WHERE username = 'eve'`)
	if _, err := body.ReadString('\n'); err == nil || ctx.Err() != nil {
		t.Errorf("it goes on: %v", err)
	}
}

// The number of logs that one user reads at once is bounded, and that of followed ones.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	for query, other := range map[string]string{"": "?follow=true", "?follow=true": ""} {
		e := newEnv(t)
		hold := make(chan struct{})
		release := sync.OnceFunc(func() { close(hold) })
		t.Cleanup(release)
		if query == "" {
			e.logs.hold = hold
		}
		e.Exec(`UPDATE users SET admin = true WHERE username = 'ann'`)
		path := "/workspaces/" + string(e.workspace(e.ann, "a").ID) + "/logs"
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		open := func(path string) *http.Response {
			r, err := http.NewRequestWithContext(ctx, "GET", e.HTTP.URL+Prefix+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			as(e.ann)(r)
			resp, err := e.HTTP.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { resp.Body.Close() })
			return resp
		}
		for i := range maxLogs {
			if resp := open([]string{path, "/admin" + path}[i%2] + query); resp.StatusCode != 200 {
				t.Fatalf("%q %d: status %d", query, i, resp.StatusCode)
			}
		}
		for _, path := range []string{path, "/admin" + path} {
			resp := open(path + query)
			line, err := bufio.NewReader(resp.Body).ReadString('\n')
			if resp.StatusCode != 429 || !strings.Contains(line, `"too_many_streams"`) {
				t.Fatalf("one more %q: status %d, %q, %v", path+query, resp.StatusCode, line, err)
			}
		}
		if resp := open(path + other); resp.StatusCode != 200 {
			t.Errorf("%q beside %q: status %d", other, query, resp.StatusCode)
		}
		release()
		e.HTTP.CloseClientConnections()
		harness.EventuallyWithin(t, limit, "a place is free again", func() bool {
			resp := open(path + query)
			resp.Body.Close()
			return resp.StatusCode == 200
		})
	}
}
