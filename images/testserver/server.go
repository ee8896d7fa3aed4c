package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// sessionCookie is the name code-server gives its session.
const sessionCookie = "code-server-session"

// aliveFor is how long after a request code-server calls itself alive.
const aliveFor = time.Minute

type server struct {
	secret   string
	home     string
	exit     func(code int)
	lastBeat atomic.Int64 // Unix milliseconds of the last request other than /healthz
}

// newHandler returns every route of the test server. exit ends the process.
func newHandler(secret, home string, exit func(code int)) http.Handler {
	s := &server{secret: secret, home: home, exit: exit}

	guarded := http.NewServeMux()
	guarded.HandleFunc("/", s.echo)
	guarded.HandleFunc("GET /stream", s.stream)
	guarded.HandleFunc("GET /ws", s.webSocket)
	guarded.HandleFunc("GET /setcookie", s.setCookie)
	guarded.HandleFunc("GET /file", s.readFile)
	guarded.HandleFunc("PUT /file", s.writeFile)
	guarded.HandleFunc("DELETE /file", s.deleteFile)
	guarded.HandleFunc("GET /stat", s.stat)
	guarded.HandleFunc("GET /bytes", s.sendBytes)
	guarded.HandleFunc("PUT /bytes", s.takeBytes)
	guarded.HandleFunc("GET /probe", s.probe)
	guarded.HandleFunc("/exit", s.endProcess)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.Handle("/", s.guard(guarded))
	return mux
}

// guard lets in who knows the secret, as code-server does: the first cookie of
// that name counts and is compared as it is. A WebSocket's Origin comes first.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isUpgrade(r) && !sameOrigin(r) {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		if s.secret != "" {
			cookie, err := r.Cookie(sessionCookie)
			if err != nil || cookie.Value != s.secret {
				http.Error(w, "Unauthorized", http.StatusUnauthorized)
				return
			}
		}
		s.lastBeat.Store(time.Now().UnixMilli())
		next.ServeHTTP(w, r)
	})
}

func (s *server) health(w http.ResponseWriter, r *http.Request) {
	last := s.lastBeat.Load()
	status := "expired"
	if time.Since(time.UnixMilli(last)) < aliveFor {
		status = "alive"
	}
	writeJSON(w, map[string]any{"status": status, "lastHeartbeat": last})
}

// received is one request as it arrived, for tests to assert on.
type received struct {
	Method     string      `json:"method"`
	Path       string      `json:"path"`  // as sent, still escaped
	Query      string      `json:"query"` // as sent
	Host       string      `json:"host"`
	Proto      string      `json:"proto"`
	RemoteAddr string      `json:"remote_addr"`
	Headers    http.Header `json:"headers"`
	Hostname   string      `json:"hostname"` // of the container
	BodyBytes  int64       `json:"body_bytes"`
	BodySHA256 string      `json:"body_sha256"`
}

func receive(r *http.Request) received {
	hostname, _ := os.Hostname() // "" is as good an answer as any
	return received{
		Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Host: r.Host, Proto: r.Proto,
		RemoteAddr: r.RemoteAddr, Headers: r.Header, Hostname: hostname,
	}
}

var page = template.Must(template.New("echo").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>testserver</title></head>
<body><h1>testserver</h1><pre id="request">{{.}}</pre></body></html>
`))

// echo answers every path that has no handler of its own with what arrived: as a
// page for who asks for HTML, else as JSON. A body is counted and digested.
func (s *server) echo(w http.ResponseWriter, r *http.Request) {
	digest := sha256.New()
	n, err := io.Copy(digest, r.Body)
	if err != nil {
		http.Error(w, fmt.Sprintf("read body after %d bytes: %v", n, err), http.StatusBadRequest)
		return
	}
	got := receive(r)
	got.BodyBytes, got.BodySHA256 = n, hex.EncodeToString(digest.Sum(nil))
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		writeJSON(w, got)
		return
	}
	text, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, string(text)) // fails only when the client has gone
}

// stream sends ?n= numbered lines, each flushed, ?interval= (a Go duration) apart.
func (s *server) stream(w http.ResponseWriter, r *http.Request) {
	n, err := intParam(r, "n", 10)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	interval, err := durationParam(r, "interval", 0)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	flusher := http.NewResponseController(w)
	for i := range n {
		if i > 0 {
			select {
			case <-time.After(interval):
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprintln(w, i)
		if err := flusher.Flush(); err != nil {
			return
		}
	}
}

// setCookie sends each ?c= as a Set-Cookie header of its own, unchecked.
func (s *server) setCookie(w http.ResponseWriter, r *http.Request) {
	w.Header()["Set-Cookie"] = r.URL.Query()["c"]
	writeJSON(w, map[string]any{"set": r.URL.Query()["c"]})
}

// endProcess answers and then ends the process with ?code=.
func (s *server) endProcess(w http.ResponseWriter, r *http.Request) {
	code, err := intParam(r, "code", 0)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Printf("testserver: asked to exit with code %d\n", code)
	writeJSON(w, map[string]any{"exit": code})
	_ = http.NewResponseController(w).Flush() // the client may be gone; the exit was still asked for
	s.exit(code)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails only when the client has gone
}

func intParam(r *http.Request, name string, absent int) (int, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	return n, nil
}

func durationParam(r *http.Request, name string, absent time.Duration) (time.Duration, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return absent, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	return d, nil
}
