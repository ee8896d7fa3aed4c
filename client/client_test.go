package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/api"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves h and returns a client with a token.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(srv.URL+"/", "chub_secret", WithHTTPClient(srv.Client()))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNew(t *testing.T) {
	t.Parallel()
	for url, ok := range map[string]bool{
		"http://localhost:8080": true, " https://hub.example.com/ ": true, "https://example.com/codehub": true,
		"": false, "localhost:8080": false, "ftp://x": false, "http://": false, "http://a:b@x": false, "http://x?y": false, "http://x#y": false, "http://%zz": false,
	} {
		if _, err := New(url, ""); (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := New("http://ann:secret@x", ""); strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// A name below localhost leads to this machine without DNS, as in browsers.
func TestBelowLocalhost(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"status":"`+r.Host+`"}`) }))
	defer srv.Close()
	u, _ := url.Parse(srv.URL)
	c, err := New("http://codehub.localhost:"+u.Port(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.http.CloseIdleConnections()
	res, err := c.request(t.Context(), http.MethodGet, "/", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(b), "codehub.localhost:"+u.Port()) {
		t.Errorf("%s %v", b, err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]Error{
		`{"error":"workspace_limit_exceeded","message":"Too many.","details":{"max":2}}`: {Code: "workspace_limit_exceeded", Message: "Too many."},
		`<html>`:                   {Code: "unexpected_answer", Message: "the server answered 429 Too Many Requests, which is not codehub's API"},
		`{"error":"Unauthorized"}`: {Code: "unexpected_answer", Message: "the server answered 429 Too Many Requests, which is not codehub's API"},
		`{}`:                       {Code: "unexpected_answer", Message: "the server answered 429 Too Many Requests, which is not codehub's API"},
	} {
		var requests atomic.Int32
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if r.Header.Get(api.TokenHeader) != "chub_secret" || r.URL.Path != "/api/v1/workspaces/a%2Fb" && r.URL.EscapedPath() != "/api/v1/workspaces/a%2Fb" {
				t.Errorf("asked %s with %s", r.URL.EscapedPath(), r.Header)
			}
			w.Header().Set("Retry-After", "7")
			w.Header().Set("X-Request-Id", "abc")
			w.WriteHeader(429)
			fmt.Fprint(w, body)
		})
		_, err := c.Get(t.Context(), "a/b")
		var e *Error
		if !errors.As(err, &e) || e.Code != want.Code || err.Error() != want.Message || e.Status != 429 || e.RetryAfter != 7*time.Second || e.RequestID != "abc" || CodeOf(err) != want.Code {
			t.Errorf("%s: %+v", body, err)
		}
		if n := requests.Load(); n != 1 {
			t.Errorf("%s: sent %d times", body, n)
		}
	}
}

// A token is sent only to the server that it was given for.
func TestNoRedirects(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	_, err := c.Me(t.Context())
	var e *Error
	if !errors.As(err, &e) || e.Status != 307 || elsewhere.Load() != 0 {
		t.Errorf("%v, asked elsewhere %d times", err, elsewhere.Load())
	}
}

// A stream that breaks is opened again, until the server refuses it.
func TestEvents(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 1:
			fmt.Fprint(w, ": a comment\n\nevent: workspace_updated\ndata: {\"id\":\"1\",\"name\":\"a\"}\n\nevent: workspace_deleted\ndata: {\"id\":\"2\"}\n\n")
		case 2:
			w.WriteHeader(503)
		case 3:
			fmt.Fprint(w, "event: heartbeat\r\ndata: {}\r\n\r\nevent: workspace_updated\ndata: {\"id\":\ndata: \"3\"}\n\nevent: workspace_updated\ndata: {\"id\":\"cut")
		default:
			w.WriteHeader(401)
			fmt.Fprint(w, `{"error":"unauthenticated","message":"Log in first."}`)
		}
	})
	var got []string
	err := c.Events(t.Context(), func(e Event) error {
		got = append(got, e.Name+" "+e.ID+e.Workspace.Name)
		return nil
	})
	want := []string{"workspace_updated 1a", "workspace_deleted 2", "heartbeat ", "workspace_updated 3"}
	if CodeOf(err) != "unauthenticated" || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNoEvent(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "event: workspace_updated\ndata: nonsense\n\n")
	})
	if err := c.Events(t.Context(), func(Event) error { return nil }); !errors.Is(err, errBadEvent) {
		t.Error(err)
	}
}

func TestEventsEnd(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "event: heartbeat\ndata: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	if err := c.Events(t.Context(), func(Event) error { return ErrStop }); err != nil {
		t.Errorf("stopped: %v", err)
	}
	mine := errors.New("mine")
	if err := c.Events(t.Context(), func(Event) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("the function's own error: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Events(ctx, func(Event) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/workspaces/gone") {
			w.WriteHeader(404)
			fmt.Fprint(w, `{"error":"not_found","message":"There is no such workspace."}`)
			return
		}
		for _, data := range []string{
			`{"id":"other","phase":"RUNNING","operation":"NONE"}`, `{"id":"a","phase":"STANDBY","operation":"STARTING"}`,
			`{"id":"a","phase":"RUNNING","operation":"NONE"}`, `{"id":"b","name":"b","phase":"ERROR","operation":"NONE","error_message":"no such image"}`,
		} {
			fmt.Fprintf(w, "event: workspace_updated\ndata: %s\n\n", data)
		}
		fmt.Fprint(w, "event: workspace_deleted\ndata: {\"id\":\"gone\"}\n\n")
	})
	runs := func(w api.Workspace) bool { return w.Phase == "RUNNING" }
	if w, err := c.Wait(t.Context(), "a", runs); err != nil || w.ID != "a" {
		t.Errorf("%+v, %v", w, err)
	}
	var rest *WaitError
	if w, err := c.Wait(t.Context(), "b", runs); !errors.As(err, &rest) || w.ID != "b" || err.Error() != "b is in error: no such image" {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := c.Wait(t.Context(), "gone", runs); CodeOf(err) != "not_found" {
		t.Error(err)
	}
}

func TestDownload(t *testing.T) {
	t.Parallel()
	const digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of "abc"
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/api/v1/workspaces/x/archive?archive_op_id=op" || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("asked %s with %s", r.URL.RequestURI(), r.Header)
		}
		w.Header().Set("ETag", `"`+digest+`"`)
		w.Header().Set("Repr-Digest", "md5=:x:, sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("abc"))
	})
	for _, d := range []struct {
		offset int64
		etag   string
		want   string
	}{{0, "", "abc"}, {2, `"` + digest + `"`, "c"}, {2, `"other"`, "abc"}, {2, "", "abc"}} {
		got, err := c.Download(t.Context(), "x", "op", d.offset, d.etag)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(got.Body)
		got.Body.Close()
		if err != nil || string(b) != d.want || got.Offset != int64(3-len(d.want)) || got.Size != 3 || got.SHA256 != digest || got.ETag != `"`+digest+`"` {
			t.Errorf("from %d of %s: %q, %v, %+v", d.offset, d.etag, b, err, got)
		}
	}
	if got, err := c.DownloadInfo(t.Context(), "x", "op"); err != nil || got.Body != nil || got.Size != 3 || got.SHA256 != digest {
		t.Errorf("%+v, %v", got, err)
	}
}

// Inconsistent headers of a partial response are an error.
func TestDownloadOfNonsense(t *testing.T) {
	t.Parallel()
	for _, said := range []string{"", "bytes", "bytes */3", "bytes x-1/3", "bytes 0-1/*", "bytes -1-1/3", "bytes 5-6/3"} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", said)
			w.WriteHeader(http.StatusPartialContent)
		})
		if d, err := c.DownloadInfo(t.Context(), "x", ""); err == nil {
			t.Errorf("%q: %+v", said, d)
		}
	}
	for said, want := range map[string]string{"sha-256=:AAAA:": "", "sha-512=:AAAA:": "", "sha-256=AAAA": "", "": ""} {
		if got := reprDigest(said); got != want {
			t.Errorf("%q: %q", said, got)
		}
	}
}
