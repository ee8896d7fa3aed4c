package httpapi

import (
	"bufio"
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"codehub/internal/workspace"
)

// exchange is what is known of one request, for the log and the metrics.
type exchange struct {
	id, route, user string
	quiet           bool
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	e, _ := ctx.Value(exchangeKey{}).(*exchange)
	return e
}

// RequestID is the id that the log knows this request by, "" outside Outer.
func RequestID(ctx context.Context) string {
	if e := exchangeOf(ctx); e != nil {
		return e.id
	}
	return ""
}

// SetRoute names the request's route for the log and the metrics. Names are
// few: patterns, never paths.
func SetRoute(ctx context.Context, name string) {
	if e := exchangeOf(ctx); e != nil {
		e.route = name
	}
}

// SetUser notes for the log who asked.
func SetUser(ctx context.Context, userID string) {
	if e := exchangeOf(ctx); e != nil {
		e.user = userID
	}
}

// Quiet keeps a request that went well out of the log (unless it is at debug
// level): probes, assets, and what is proxied.
func Quiet(ctx context.Context) {
	if e := exchangeOf(ctx); e != nil {
		e.quiet = true
	}
}

// Outer is what stands around everything that the server answers: the
// request's id, the access log, the metrics (which may be nil), and the
// recovery from panics. It leaves streaming and hijacking to what is inside.
func Outer(log *slog.Logger, m *Metrics, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		e := &exchange{id: requestID(r)}
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, e))
		rec := &recorder{ResponseWriter: w}
		w.Header().Set("X-Request-Id", e.id)
		done := m.begin()
		defer func() {
			v := recover()
			cut := v != nil // an answer cut short must not look whole
			if v != nil && v != http.ErrAbortHandler {
				log.ErrorContext(r.Context(), "panic", "request_id", e.id, "panic", v, "stack", string(debug.Stack()))
				if rec.status == 0 && !rec.hijacked {
					WriteError(rec, r, log, workspace.Errorf(codeInternal, "Something went wrong on the server. Request %s.", e.id))
					cut = false
				}
			}
			if rec.status == 0 {
				rec.status = http.StatusOK
			}
			took := time.Since(start)
			done(e.route, r.Method, rec.status, took)
			logAccess(log, r, e, rec, took)
			if cut {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

func logAccess(log *slog.Logger, r *http.Request, e *exchange, rec *recorder, took time.Duration) {
	level := slog.LevelInfo
	if e.quiet && rec.status < 500 {
		level = slog.LevelDebug
	}
	if !log.Enabled(r.Context(), level) {
		return
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	// The path without its query, which may hold secrets.
	log.LogAttrs(r.Context(), level, "request",
		slog.String("request_id", e.id), slog.String("method", bounded(r.Method)), slog.String("path", bounded(r.URL.Path)),
		slog.String("route", e.route), slog.Int("status", rec.status), slog.Int64("bytes", rec.bytes),
		slog.Duration("took", took), slog.String("remote", host), slog.String("user", e.user))
}

// bounded makes what a stranger sent fit for a log line.
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
		r.hijacked = true
		if r.status == 0 {
			r.status = http.StatusSwitchingProtocols
		}
	}
	return c, rw, err
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
