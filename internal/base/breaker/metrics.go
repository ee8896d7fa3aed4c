package breaker

import (
	"github.com/prometheus/client_golang/prometheus"

	"codehub/api"
)

var (
	stateDesc = prometheus.NewDesc("codehub_backend_breaker_state",
		"State of a backend's circuit breaker: 1 for the current state, 0 for the others.", []string{"backend", "state"}, nil)
	failuresDesc = prometheus.NewDesc("codehub_backend_failures",
		"Consecutive calls to a backend without a response.", []string{"backend"}, nil)
	openedDesc = prometheus.NewDesc("codehub_backend_breaker_opened_total",
		"Number of times a backend's circuit breaker opened.", []string{"backend"}, nil)
)

// Metrics collects the state of breakers for Prometheus.
type Metrics []*Breaker

// Describe implements prometheus.Collector.
func (m Metrics) Describe(out chan<- *prometheus.Desc) {
	out <- stateDesc
	out <- failuresDesc
	out <- openedDesc
}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(out chan<- prometheus.Metric) {
	for _, b := range m {
		b.mu.Lock()
		state, failures, opened := b.state, b.failures, b.opened
		b.mu.Unlock()
		for _, s := range []string{api.BreakerClosed, api.BreakerOpen, api.BreakerHalfOpen} {
			v := 0.0
			if s == state {
				v = 1
			}
			out <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, v, b.cfg.Name, s)
		}
		out <- prometheus.MustNewConstMetric(failuresDesc, prometheus.GaugeValue, float64(failures), b.cfg.Name)
		out <- prometheus.MustNewConstMetric(openedDesc, prometheus.CounterValue, float64(opened), b.cfg.Name)
	}
}
