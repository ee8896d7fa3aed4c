package httpapi

import (
	"bufio"
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"codehub/internal/gateway/front"
	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/shortway"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// Outer wraps the handler of all requests. It adds the request's id, the access log, the
// metrics (which may be nil) and the recovery from panics, and lets the handler stream and
// hijack. A request that continues after its handler, in the group continued (which may be
// nil), is logged and counted when it ends.
func Outer(log *slog.Logger, m *Metrics, continued *shortway.Group, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		e := &accesslog.Request{ID: requestID(r)}
		ctx, rest := continued.Allow(accesslog.With(r.Context(), e))
		r = r.WithContext(ctx)
		rec := &recorder{ResponseWriter: w}
		w.Header().Set("X-Request-Id", e.ID)
		if r.ProtoMajor == 1 && len(r.Header["Upgrade"]) > 0 {
			// inbound.Strict checks nothing after such a request. A handler may remove the field.
			w.Header().Set("Connection", "close")
			inbound.CloseAfter(w)
		}
		done := m.begin()
		// It keeps no part of net/http's request or response: a request that continues holds it.
		a := answered{Request: e, log: log, method: r.Method, path: r.URL.Path, remote: front.Address(r)}
		rec.repeated = func(f shortway.Repeated) shortway.Repeated {
			return a.repeated(m, e.ID == r.Header.Get("X-Request-Id"), f)
		}
		end := func(status int, bytes int64) {
			took := time.Since(start)
			done(a.Route, a.method, status, took)
			a.access(status, bytes, took)
		}
		defer func() {
			v := recover()
			switch {
			case !rest.Begun():
			case v != nil:
				rest.Abort()
			default:
				status, bytes := rec.status, rec.bytes
				a.keep()
				rest.Go(func(sent int64, panicked *shortway.Panic) {
					if panicked != nil {
						a.panicked(panicked)
					}
					end(status, bytes+sent)
				})
				return
			}
			cut := v != nil // a truncated response must not look complete
			if v != nil && v != http.ErrAbortHandler {
				a.panicked(shortway.Recovered(v))
				if rec.status == 0 && !rec.hijacked {
					WriteError(rec, r, log, workspace.Errorf(codeInternal, "Something went wrong on the server. Request %s.", e.ID))
					cut = false
				}
			}
			if rec.status == 0 {
				rec.status = http.StatusOK
			}
			end(rec.status, rec.bytes)
			if cut {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// repeated decorates f with what Outer does for a request. named says that the client has
// given the request its id, which repeated requests have as well.
func (a answered) repeated(m *Metrics, named bool, f shortway.Repeated) shortway.Repeated {
	first := *a.Request
	return func(target []byte, ans *shortway.Answer) (done bool) {
		start, e := time.Now(), first
		if !named {
			e.ID = newID()
		}
		ans.Field("X-Request-Id", e.ID)
		end := m.begin()
		done = true // stays true if f panics
		defer func() {
			v := recover()
			status, bytes := ans.Sent()
			if v != nil && v != http.ErrAbortHandler {
				(&answered{Request: &e, log: a.log}).panicked(shortway.Recovered(v))
				v = http.ErrAbortHandler
				if status == 0 {
					status = http.StatusInternalServerError
				}
			}
			if !done {
				end("", "", 0, 0)
				return
			}
			if status == 0 { // it was not answered; counted as Outer does
				status = http.StatusOK
			}
			took := time.Since(start)
			end(e.Route, a.method, status, took)
			again := answered{Request: &e, log: a.log, method: a.method, remote: a.remote}
			if again.logged(status) {
				again.path, _, _ = strings.Cut(string(target), "?")
				again.access(status, bytes, took)
			}
			if v != nil {
				panic(v)
			}
		}()
		return f(target, ans)
	}
}

// answered is a request as it is logged.
type answered struct {
	*accesslog.Request
	log          *slog.Logger
	method, path string
	remote       netip.Addr
}

// keep copies the strings that share memory with the request's first line. That line may be
// long, and would otherwise stay in memory until a request that continues has ended.
func (a *answered) keep() {
	a.method, a.path, a.Workspace = strings.Clone(bounded(a.method)), strings.Clone(bounded(a.path)), strings.Clone(a.Workspace)
}

func (a *answered) panicked(p *shortway.Panic) {
	a.log.Error("panic", "request_id", a.ID, "panic", p.Value, "stack", p.Stack)
}

// level is that at which the request is logged.
func (a *answered) level(status int) slog.Level {
	if a.Quiet && status < 500 && status != http.StatusUnauthorized && status != http.StatusForbidden {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// logged reports whether access logs anything.
func (a *answered) logged(status int) bool {
	return a.log.Enabled(context.Background(), a.level(status))
}

func (a *answered) access(status int, bytes int64, took time.Duration) {
	if !a.logged(status) {
		return
	}
	level := a.level(status)
	// The path without its query, which may hold secrets.
	attrs := []slog.Attr{
		slog.String("request_id", a.ID), slog.String("method", bounded(a.method)), slog.String("path", bounded(a.path)),
		slog.String("route", a.Route), slog.Int("status", status), slog.Int64("bytes", bytes),
		slog.Duration("took", took), slog.String("remote", a.remote.String()), slog.String("user", a.User),
	}
	if a.Workspace != "" {
		attrs = append(attrs, slog.String("workspace", a.Workspace))
	}
	if a.Port != 0 {
		attrs = append(attrs, slog.Int("port", a.Port))
	}
	a.log.LogAttrs(context.Background(), level, "request", attrs...)
}

// bounded truncates and escapes text from a client for a log line.
func bounded(s string) string {
	if len(s) > 256 {
		s = s[:256] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// requestID returns the id that a proxy in front has set, if it has the form of one.
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
	return newID()
}

func newID() string { return rand.Text()[:16] }

// recorder records the status and size of a response.
type recorder struct {
	http.ResponseWriter
	status   int
	bytes    int64
	hijacked bool
	repeated func(shortway.Repeated) shortway.Repeated // or nil
}

// Repeat is called by shortway.Repeat.
func (r *recorder) Repeat(f shortway.Repeated) {
	if r.repeated != nil {
		shortway.Repeat(r.ResponseWriter, r.repeated(f))
	}
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

// Flush and Hijack are for callers that do not use http.ResponseController; Unwrap is for it.
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
