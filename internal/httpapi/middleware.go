package httpapi

import (
	"bufio"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"codehub/internal/accesslog"
	"codehub/internal/front"
	"codehub/internal/workspace"
)

// Outer is what stands around everything that the server answers: the
// request's id, the access log, the metrics (which may be nil), and the
// recovery from panics. It leaves streaming and hijacking to what is inside.
func Outer(log *slog.Logger, m *Metrics, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		e := &accesslog.Request{ID: requestID(r)}
		r = r.WithContext(accesslog.With(r.Context(), e))
		rec := &recorder{ResponseWriter: w}
		w.Header().Set("X-Request-Id", e.ID)
		if r.ProtoMajor == 1 && len(r.Header["Upgrade"]) > 0 {
			// inbound.Strict checks nothing after such a request.
			w.Header().Set("Connection", "close")
		}
		done := m.begin()
		defer func() {
			v := recover()
			cut := v != nil // an answer cut short must not look whole
			if v != nil && v != http.ErrAbortHandler {
				log.ErrorContext(r.Context(), "panic", "request_id", e.ID, "panic", v, "stack", string(debug.Stack()))
				if rec.status == 0 && !rec.hijacked {
					WriteError(rec, r, log, workspace.Errorf(codeInternal, "Something went wrong on the server. Request %s.", e.ID))
					cut = false
				}
			}
			if rec.status == 0 {
				rec.status = http.StatusOK
			}
			took := time.Since(start)
			done(e.Route, r.Method, rec.status, took)
			logAccess(log, r, e, rec, took)
			if cut {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

func logAccess(log *slog.Logger, r *http.Request, e *accesslog.Request, rec *recorder, took time.Duration) {
	level := slog.LevelInfo
	if e.Quiet && rec.status < 500 && rec.status != http.StatusUnauthorized && rec.status != http.StatusForbidden {
		level = slog.LevelDebug
	}
	if !log.Enabled(r.Context(), level) {
		return
	}
	// The path without its query, which may hold secrets.
	attrs := []slog.Attr{
		slog.String("request_id", e.ID), slog.String("method", bounded(r.Method)), slog.String("path", bounded(r.URL.Path)),
		slog.String("route", e.Route), slog.Int("status", rec.status), slog.Int64("bytes", rec.bytes),
		slog.Duration("took", took), slog.String("remote", front.Address(r).String()), slog.String("user", e.User),
	}
	if e.Workspace != "" {
		attrs = append(attrs, slog.String("workspace", e.Workspace))
	}
	if e.Port != 0 {
		attrs = append(attrs, slog.Int("port", e.Port))
	}
	log.LogAttrs(r.Context(), level, "request", attrs...)
}

// bounded makes text from a client fit for a log line.
func bounded(s string) string {
	if len(s) > 256 {
		s = s[:256] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// requestID takes over the id that a proxy in front gave, if it looks like one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	ok := id != "" && len(id) <= 64
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		ok = c == '-' || c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
	}
	if ok {
		return id
	}
	return rand.Text()[:16]
}

// recorder notes what was answered.
type recorder struct {
	http.ResponseWriter
	status   int
	bytes    int64
	hijacked bool
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 || status == http.StatusSwitchingProtocols {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Flush and Hijack are for those who look for them without
// http.ResponseController; Unwrap is for it.
func (r *recorder) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.Header().Del("Connection")
		r.hijacked = true
		if r.status == 0 {
			r.status = http.StatusSwitchingProtocols
		}
	}
	return c, rw, err
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
