package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
)

const testSecret = "5ec7e7"

// newTestServer serves a handler with the secret and a home of its own; exits are
// sent on the channel.
func newTestServer(t *testing.T, secret string) (*httptest.Server, <-chan int) {
	t.Helper()
	exits := make(chan int, 1)
	srv := httptest.NewServer(newHandler(secret, t.TempDir(), func(code int) { exits <- code }))
	t.Cleanup(srv.Close)
	return srv, exits
}

// request sends a request with headers given as name, value pairs.
func request(t *testing.T, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := visitor.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("decode %q: %v", text, err)
	}
	return v
}

func TestEchoReportsWhatArrived(t *testing.T) {
	t.Parallel()
	srv, _ := newTestServer(t, "")
	_, text := request(t, "POST", srv.URL+"/a%2Fb/c?x=1&y", "hello", "X-Probe", "one", "X-Probe", "two")
	got := decode[received](t, text)
	digest := sha256.Sum256([]byte("hello"))
	if diff := cmp.Diff([]any{"POST", "/a%2Fb/c", "x=1&y", int64(5), hex.EncodeToString(digest[:]), []string{"one", "two"}},
		[]any{got.Method, got.Path, got.Query, got.BodyBytes, got.BodySHA256, got.Headers["X-Probe"]}); diff != "" {
		t.Errorf("what arrived (-want +got):\n%s", diff)
	}
	if want := strings.TrimPrefix(srv.URL, "http://"); got.Host != want {
		t.Errorf("host = %q, want %q", got.Host, want)
	}
}

func TestSecret(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, secret, path string
		cookies            []string
		want               int
	}{
		{"no secret set", "", "/", nil, 200},
		{"no cookie", testSecret, "/", nil, 401},
		{"the secret", testSecret, "/", []string{sessionCookie + "=" + testSecret}, 200},
		{"another value", testSecret, "/", []string{sessionCookie + "=x"}, 401},
		{"another name", testSecret, "/", []string{"session=" + testSecret}, 401},
		{"the first of two counts", testSecret, "/", []string{sessionCookie + "=x; " + sessionCookie + "=" + testSecret}, 401},
		{"healthz is open", testSecret, "/healthz", nil, 200},
		{"a WebSocket without it", testSecret, "/ws", nil, 401},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv, _ := newTestServer(t, c.secret)
			var headers []string
			for _, cookie := range c.cookies {
				headers = append(headers, "Cookie", cookie)
			}
			if c.path == "/ws" {
				headers = append(headers, "Connection", "Upgrade", "Upgrade", "websocket")
			}
			if res, _ := request(t, "GET", srv.URL+c.path, "", headers...); res.StatusCode != c.want {
				t.Errorf("status = %d, want %d", res.StatusCode, c.want)
			}
		})
	}
}

func TestHealthIsNoActivityOfItsOwn(t *testing.T) {
	t.Parallel()
	type health struct {
		Status        string `json:"status"`
		LastHeartbeat int64  `json:"lastHeartbeat"`
	}
	srv, _ := newTestServer(t, testSecret)
	for range 2 {
		_, text := request(t, "GET", srv.URL+"/healthz", "")
		if diff := cmp.Diff(health{Status: "expired"}, decode[health](t, text)); diff != "" {
			t.Fatalf("before any request (-want +got):\n%s", diff)
		}
		request(t, "GET", srv.URL+"/", "") // 401: a stranger is no activity either
	}
	begin := time.Now().UnixMilli()
	request(t, "GET", srv.URL+"/", "", "Cookie", sessionCookie+"="+testSecret)
	_, text := request(t, "GET", srv.URL+"/healthz", "")
	if got := decode[health](t, text); got.Status != "alive" || got.LastHeartbeat < begin {
		t.Errorf("after a request: %+v, want alive since %d", got, begin)
	}
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	srv, _ := newTestServer(t, testSecret)
	conn, res, err := websocket.Dial(t.Context(), srv.URL+"/ws?hello=1", &websocket.DialOptions{
		HTTPHeader:      http.Header{"Cookie": {sessionCookie + "=" + testSecret}, "Origin": {srv.URL}},
		CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if got := res.Header.Get("Sec-WebSocket-Extensions"); !strings.HasPrefix(got, "permessage-deflate") {
		t.Errorf("extensions = %q, want permessage-deflate", got)
	}
	conn.SetReadLimit(-1)
	_, hello, err := conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := decode[received](t, string(hello)); got.Path != "/ws" || got.Headers.Get("Origin") != srv.URL {
		t.Errorf("hello = %s", hello)
	}
	for kind, message := range map[websocket.MessageType]string{
		websocket.MessageText: "text", websocket.MessageBinary: strings.Repeat("\x00binary", 20_000),
	} {
		if err := conn.Write(t.Context(), kind, []byte(message)); err != nil {
			t.Fatal(err)
		}
		gotKind, got, err := conn.Read(t.Context())
		if err != nil || gotKind != kind || string(got) != message {
			t.Errorf("echo of %v: %v, %d bytes, %v", kind, gotKind, len(got), err)
		}
	}
}

func TestSameOrigin(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		origin  string
		headers map[string]string
		want    bool
	}{
		{"no origin", "", nil, true},
		{"host", "http://inside:8080", nil, true},
		{"host in capitals", "http://INSIDE:8080", nil, true},
		{"another host", "http://outside:8080", nil, false},
		{"another port", "http://inside:8081", nil, false},
		{"null", "null", nil, false},
		{"not a URL", "http://%", nil, false},
		{"X-Forwarded-Host wins over Host", "https://hub.example", map[string]string{"X-Forwarded-Host": "hub.example"}, true},
		{"Host loses to X-Forwarded-Host", "http://inside:8080", map[string]string{"X-Forwarded-Host": "hub.example"}, false},
		{"the scheme's own port", "https://hub.example:443", map[string]string{"X-Forwarded-Host": "hub.example"}, true},
		{"Forwarded wins over both", "https://a.example", map[string]string{"Forwarded": "for=1.2.3.4; host=a.example", "X-Forwarded-Host": "b.example"}, true},
		{"Forwarded without a host", "https://b.example", map[string]string{"Forwarded": "for=1.2.3.4", "X-Forwarded-Host": "b.example"}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest("GET", "http://inside:8080/ws", nil)
			r.Header.Set("Upgrade", "websocket")
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
			if got := sameOrigin(r); got != c.want {
				t.Errorf("sameOrigin = %v, want %v", got, c.want)
			}
			if !c.want { // the guard has to ask the rule, and before the secret
				w := httptest.NewRecorder()
				newHandler(testSecret, t.TempDir(), nil).ServeHTTP(w, r)
				if w.Code != http.StatusForbidden {
					t.Errorf("status = %d, want 403", w.Code)
				}
			}
		})
	}
}

// visitor has a transport of its own: closing an httptest.Server cuts the
// default one, under requests that other tests are making.
var visitor = &http.Client{Transport: &http.Transport{}}
