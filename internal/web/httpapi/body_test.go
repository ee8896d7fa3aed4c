package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/gateway/inbound"
	"codehub/internal/workspace"
)

func decoded(body string, v any, typ string) error {
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", typ)
	return testServer().decode(httptest.NewRecorder(), r, v)
}

func TestDecode(t *testing.T) {
	t.Parallel()
	const typ = "application/json"
	for body, want := range map[string]string{
		`{"name":"a"}`:                           "",
		` { "name" : "a" , "memo" : "\u00e9" } `: "",
		``:                                       "not a JSON object",
		`null`:                                   "not a JSON object",
		`[]`:                                     "not a JSON object",
		`"name"`:                                 "not a JSON object",
		`{`:                                      "not a JSON object",
		`{"name"}`:                               "not a JSON object",
		`{"name":}`:                              "not a JSON object",
		`{"name":"a",}`:                          "not a JSON object",
		`{"name":"a"`:                            "not a JSON object",
		`{name:"a"}`:                             "not a JSON object",
		`{"name":"a"} {}`:                        "content after",
		`{"name":"a"}x`:                          "content after",
		`{"name":"a","nam":"b"}`:                 "nam is unknown",
		`{"Name":"a"}`:                           "Name is unknown",
		`{"name":"a","name":"b"}`:                "name is given twice",
		`{"name":1}`:                             "name is of the wrong type",
		`{"name":{"x":1}}`:                       "name is of the wrong type",
		`{"name":"a","standby_ttl_seconds":"1"}`: "standby_ttl_seconds is of the wrong type",
		`{"name":"a","standby_ttl_seconds":1.5}`: "standby_ttl_seconds is of the wrong type",
		`{"name":"a","standby_ttl_seconds":1e99}`: "standby_ttl_seconds is of the wrong type",
		`{"` + strings.Repeat("x", 9999) + `":1}`: "is unknown",
	} {
		var v api.CreateWorkspace
		err := decoded(body, &v, typ)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", body, err)
		case want != "" && (workspace.CodeOf(err) != workspace.CodeInvalid || !strings.Contains(err.Error(), want) || len(err.Error()) > 400):
			t.Errorf("%.60s: %.400v, want %q", body, err, want)
		}
	}
	var p api.UpdateWorkspace
	if err := decoded(`{"standby_ttl_seconds":null,"archive_ttl_seconds":5}`, &p, typ); err != nil {
		t.Error(err)
	}
	if p.KeepAwakeUntil.Set || !p.StandbyTTLSeconds.Set || p.StandbyTTLSeconds.Value != nil || *p.ArchiveTTLSeconds.Value != 5 {
		t.Errorf("%+v", p)
	}
	err := decoded(`{"keep_awake_until":"tomorrow"}`, &p, typ)
	if workspace.CodeOf(err) != workspace.CodeInvalid || !strings.Contains(err.Error(), " tomorrow is not a time like 2026-") {
		t.Errorf("a time that is none: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"name":"a","standby_ttl_seconds":null}`)
	f.Add(`{"name":"a","name":"b"} {`)
	f.Fuzz(func(t *testing.T, body string) {
		var v api.UpdateWorkspace
		err := decoded(body, &v, "application/json")
		if err == nil && !json.Valid([]byte(body)) {
			t.Errorf("%q passes as %+v", body, v)
		}
		if code := workspace.CodeOf(err); err != nil && code != workspace.CodeInvalid && code != workspace.CodeTooLarge {
			t.Errorf("%q: %v", body, err)
		}
	})
}

// A body that never ends does not keep the connection open.
func TestSlowBodyIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(c *Config) { c.ReadWithin = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", e.HTTP.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s/login HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", Prefix, e.HTTP.Listener.Addr())
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn) // to the connection's end
	if err != nil || !strings.Contains(string(b), "HTTP/1.1 400") || !strings.Contains(string(b), "invalid_request") {
		t.Errorf("%q, %v", b, err)
	}
	// The deadline does not apply after a body has arrived in time.
	id := "/workspaces/" + string(e.workspace(e.ann, "a").ID)
	for range 3 {
		e.want(200, "", "PATCH", id, `{"memo":"x"}`, as(e.ann))
		<-time.After(60 * time.Millisecond)
	}
}

// No two fields of a body have the same JSON name.
func TestJSONFields(t *testing.T) {
	t.Parallel()
	if got := jsonFields(reflect.TypeFor[api.Login]()); fmt.Sprint(got) != "[username password]" {
		t.Error(got)
	}
}

// Without a session, an open route refuses a body by its declared length, and every other
// route refuses the request. Neither waits for the body.
func TestBodiesWithoutSession(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	host := e.HTTP.Listener.Addr().String()
	var wg sync.WaitGroup
	for _, rt := range testServer().routes() {
		if rt.method == http.MethodGet {
			continue
		}
		want := http.StatusUnauthorized
		if rt.needs == open {
			want = http.StatusRequestEntityTooLarge
		}
		wg.Go(func() {
			c, err := net.Dial("tcp", host)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // before a body that does not arrive is given up
			_, _ = fmt.Fprintf(c, "%s %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", rt.method, Prefix, rt.path, host, inbound.MaxOpenBody+1)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != want {
				t.Errorf("%s %s: %v, %v, want %d", rt.method, rt.path, res, err, want)
			}
		})
	}
	wg.Wait()
	most := `{"username":"` + strings.Repeat("x", inbound.MaxOpenBody-len(`{"username":"","password":"x"}`)) + `","password":"x"}`
	e.want(401, "bad_credentials", "POST", "/login", most)
	e.want(413, "too_large", "POST", "/login", most+" ")
	// The same without a declared length.
	for body, want := range map[string]int{most: 401, most + " ": 413} {
		r, err := http.NewRequest("POST", e.HTTP.URL+Prefix+"/login", io.MultiReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes of unknown length: %d, want %d", len(body), resp.StatusCode, want)
		}
	}
}

func TestBodySizeIsBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	me := as(e.ann)
	pad := func(n int) string { return `{"name":"` + strings.Repeat("x", n-len(`{"name":""}`)) + `"}` }
	e.want(413, "too_large", "POST", "/workspaces", pad(maxBody+1), me)
	e.want(413, "too_large", "POST", "/login", pad(maxBody+1))
	e.want(400, "invalid_request", "POST", "/workspaces", pad(maxBody), me)
	// The limit does not depend on the Content-Length.
	r, err := http.NewRequest("POST", e.HTTP.URL+Prefix+"/workspaces", strings.NewReader(strings.Repeat(" ", 2*maxBody)))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = -1
	me(r)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("a body of unknown length: %d", resp.StatusCode)
	}

	w := e.workspace(e.ann, "target")
	x := strings.Repeat
	q := func(field, value string) string {
		b, err := json.Marshal(map[string]string{field: value})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	n := 0
	for _, c := range []struct {
		field, value string
		ok           bool
	}{
		{"name", x("가", 255), true}, {"name", x("가", 256), false}, {"name", "", false}, {"name", " \t ", false},
		{"name", "a\nb", false}, {"name", "a\x00b", false}, {"name", "a\x1b[31m", false}, {"name", "a\u202eb", false}, {"name", "a\u2028b", false},
		{"name", "<script>alert(1)</script>", true}, {"name", "👩‍💻 日本", true},
		{"description", x("d", workspace.MaxDescription), true}, {"description", x("d", workspace.MaxDescription+1), false}, {"description", "a\nb\tc", true}, {"description", "a\x07", false},
		{"memo", x("m", workspace.MaxMemo), true}, {"memo", x("m", workspace.MaxMemo+1), false}, {"memo", "a\x00", false}, {"memo", "", true},
		{"desired_state", "DELETED", false}, {"desired_state", "running", false}, {"desired_state", "", false},
	} {
		status, code := 200, ""
		if !c.ok {
			status, code = 400, "invalid_request"
		}
		a := e.want(status, code, "PATCH", "/workspaces/"+string(w.ID), q(c.field, c.value), me)
		if !c.ok {
			if field := read[api.Error](t, a).Details["field"]; field != c.field {
				t.Errorf("%s: the field to blame is %v", c.field, field)
			}
		}
		body := q(c.field, c.value)
		if n++; c.field != "name" {
			body = fmt.Sprintf(`{"name":"n%d",%s`, n, body[1:])
		}
		if c.ok {
			status = 201
		}
		e.want(status, code, "POST", "/workspaces", body, as(e.eve))
	}
	for value, ok := range map[string]bool{
		`0`: true, `1`: true, `315360000`: true, `null`: true, `-1`: false, `315360001`: false, `9223372036854775808`: false, `"5"`: false, `true`: false,
	} {
		status, code := 200, ""
		if !ok {
			status, code = 400, "invalid_request"
		}
		for _, field := range []string{"standby_ttl_seconds", "archive_ttl_seconds"} {
			e.want(status, code, "PATCH", "/workspaces/"+string(w.ID), `{"`+field+`":`+value+`}`, me)
		}
	}
	for value, ok := range map[string]bool{
		`null`: true, `"2001-01-01T00:00:00Z"`: false, `"2999-01-01T00:00:00Z"`: false, `"soon"`: false, `5`: false,
	} {
		status, code := 200, ""
		if !ok {
			status, code = 400, "invalid_request"
		}
		e.want(status, code, "PATCH", "/workspaces/"+string(w.ID), `{"keep_awake_until":`+value+`}`, me)
	}
}

// References that Docker could take for an option, a path or another argument are
// refused.
func TestImageRef(t *testing.T) {
	t.Parallel()
	for ref, ok := range map[string]bool{
		"debian": true, "codehub/workspace:latest": true, "ghcr.io/a/b:v1.2_x": true, "localhost:5000/a": true,
		"a@sha256:" + strings.Repeat("0", 64): true, strings.Repeat("a", 200): true,
		"": false, "-v": false, "--privileged": false, "a b": false, " a": false, "a ": false, "a\nb": false, "a;b": false, "$(x)": false,
		"case/UPPER": false, "a:": false, "http://a/b": false, "../a": false, "/a": false, "a//b": false, "a:b c": false,
		strings.Repeat("0", 64): false, strings.Repeat("a/", 300) + "a": false, "a\x00": false, "é": false,
	} {
		if err := checkImageRef(ref); (err == nil) != ok {
			t.Errorf("%.80q: %v", ref, err)
		}
	}
}

func TestUnknownQueryParametersAreRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	me, w := as(e.ann), "/workspaces/"+string(e.workspace(e.ann, "target").ID)
	for path, bad := range map[string]string{
		"/workspaces?phase=STANDING":             "phase",
		"/workspaces?limit=0":                    "limit",
		"/workspaces?limit=201":                  "limit",
		"/workspaces?limit=x":                    "limit",
		"/workspaces?deleted=maybe":              "deleted",
		"/workspaces?q=%00":                      "q",
		"/workspaces?q=%ff":                      "q",
		"/workspaces?owner=eve":                  "owner",
		"/workspaces?q=a&q=b":                    "q",
		w + "/logs?tail=-1":                      "tail",
		w + "/logs?tail=100001":                  "tail",
		w + "/logs?follow=yes":                   "follow",
		w + "/logs?since=1":                      "since",
		"/session?x=1":                           "x",
		"/workspaces?" + strings.Repeat("x", 99): strings.Repeat("x", 99),
	} {
		a := e.want(400, "invalid_request", "GET", path, "", me)
		if got := read[api.Error](t, a).Details["field"]; got != bad {
			t.Errorf("%s: the field to blame is %v", path, got)
		}
	}
	e.want(400, "invalid_request", "POST", w+"/stop?forse=true", "", me)
	e.want(400, "invalid_request", "DELETE", w+"?queue=perhaps", "", me)
	e.want(400, "invalid_request", "GET", "/workspaces?cursor=nonsense", "", me)
	for _, id := range []string{"x", "%2e%2e%2f", strings.ToUpper(w[len("/workspaces/"):]), "00000000-0000-0000-0000-00000000000g", w[len("/workspaces/"):] + "0"} {
		e.want(404, "not_found", "GET", "/workspaces/"+id, "", me)
	}
	e.want(404, "not_found", "GET", "/workspaces/00000000-0000-0000-0000-000000000000", "", me)
	e.want(404, "not_found", "DELETE", "/tokens/x", "", me)
}
