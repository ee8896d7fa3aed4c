package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"codehub/api"
	"codehub/internal/base/health"
	"codehub/internal/web/accesslog"
)

// Healthz responds as long as the process runs, and checks nothing else: a server
// that waits for its database must not be restarted for it. It names the server's version.
func Healthz(version string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accesslog.Quiet(r.Context())
		accesslog.SetRoute(r.Context(), "/healthz")
		headers(w.Header())
		_ = writeJSON(w, http.StatusOK, map[string]string{"status": "ok", "version": version})
	})
}

// Check is a condition for a server to be ready.
type Check struct {
	Name string
	// Advisory marks a check that is reported and does not make the server unready.
	Advisory bool
	// Run returns nil if the check passes. It is called with a deadline.
	Run func(ctx context.Context) error
}

// readyWithin bounds all checks of one response, which run concurrently.
const readyWithin = 3 * time.Second

var errNoAnswer = errors.New("no answer in time")

// Readyz answers 200 if every check that is not advisory passes, else 503. The status in
// the body is ok, unknown (a first check has not ended, and nothing fails), degraded (an
// advisory check or a condition fails) or failed. It has
// the results of checks and conditions and the states of circuit breakers, and no
// errors: they may name addresses. Conditions are advisory. conditions and breakers
// may be nil.
func Readyz(log *slog.Logger, checks []Check, conditions *health.Monitor, breakers func() map[string]api.Breaker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accesslog.Quiet(r.Context())
		accesslog.SetRoute(r.Context(), "/readyz")
		headers(w.Header())
		ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
		defer cancel()
		errs := runChecks(ctx, checks)
		body := struct {
			Status   string            `json:"status"`
			Checks   map[string]string `json:"checks"`
			Breakers map[string]string `json:"breakers,omitempty"`
		}{"ok", map[string]string{}, map[string]string{}}
		degraded, unknown := false, false
		if breakers != nil {
			for name, b := range breakers() {
				body.Breakers[name] = b.State
			}
		}
		if conditions != nil {
			for _, s := range conditions.States() {
				body.Checks[s.Name] = "ok"
				switch {
				case s.Error != "":
					body.Checks[s.Name], degraded = "failed", true
				case s.Unknown:
					body.Checks[s.Name], unknown = "unknown", true
				}
			}
		}
		status := http.StatusOK
		for i, c := range checks {
			if body.Checks[c.Name] == "" {
				body.Checks[c.Name] = "ok"
			}
			if errs[i] != nil {
				body.Checks[c.Name] = "failed"
				if c.Advisory {
					degraded = true
					continue
				}
				body.Status, status = "failed", http.StatusServiceUnavailable
				log.WarnContext(r.Context(), "not ready", "check", c.Name, "err", errs[i])
			}
		}
		switch {
		case body.Status != "ok":
		case degraded:
			body.Status = "degraded"
		case unknown:
			body.Status = "unknown"
		}
		_ = writeJSON(w, status, body)
	})
}

func runChecks(ctx context.Context, checks []Check) []error {
	var wg sync.WaitGroup
	errs := make([]error, len(checks))
	for i, c := range checks {
		wg.Go(func() {
			errs[i] = c.Run(ctx)
			if errs[i] == nil && ctx.Err() != nil {
				errs[i] = errNoAnswer
			}
		})
	}
	wg.Wait()
	return errs
}

// Metrics counts requests. Its labels are bounded: a route's pattern, a known
// method, a class of status.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	open     prometheus.Gauge

	series sync.Map // of *series by seriesKey; a look-up in the vectors takes a lock
}

// seriesKey are the labels of a request. There are few routes, methods and classes.
type seriesKey struct {
	route, method string
	class         int // of the status: 2 for 2xx
}

type series struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
}

func (m *Metrics) seriesOf(k seriesKey) *series {
	if s, ok := m.series.Load(k); ok {
		return s.(*series)
	}
	s, _ := m.series.LoadOrStore(k, &series{
		m.requests.WithLabelValues(k.route, k.method, strconv.Itoa(k.class)+"xx"), m.seconds.WithLabelValues(k.route),
	})
	return s.(*series)
}

// NewMetrics returns metrics with a registry that has the process's and HTTP's metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "codehub_http_requests_total", Help: "Requests answered, by route, method and class of status.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "codehub_http_request_seconds", Help: "Time until a request was answered in full, by route.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "codehub_http_requests_open", Help: "Requests being answered, open streams and WebSockets included.",
		}),
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.requests, m.seconds, m.open)
	return m
}

// Registry is the registry for the metrics of other packages.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler serves /metrics.
func (m *Metrics) Handler() http.Handler {
	h := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accesslog.Quiet(r.Context())
		accesslog.SetRoute(r.Context(), "/metrics")
		w.Header().Set("Cache-Control", "no-store")
		h.ServeHTTP(w, r)
	})
}

func (m *Metrics) begin() (done func(route, method string, status int, took time.Duration)) {
	if m == nil {
		return func(string, string, int, time.Duration) {}
	}
	m.open.Inc()
	return func(route, method string, status int, took time.Duration) {
		m.open.Dec()
		if status == 0 { // not answered
			return
		}
		if route == "" {
			route = "other"
		}
		switch method {
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		default:
			method = "other"
		}
		s := m.seriesOf(seriesKey{route, method, status / 100})
		s.requests.Inc()
		s.seconds.Observe(took.Seconds())
	}
}
