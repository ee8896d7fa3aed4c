package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"codehub/internal/base/setting"
	"codehub/internal/control/gc"
	"codehub/internal/server/config"
)

// listenMetrics opens the listener of CODEHUB_METRICS_LISTEN; nil without that.
func listenMetrics(cfg config.Config) (net.Listener, error) {
	if cfg.MetricsListen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", cfg.MetricsListen)
	if err != nil {
		return nil, &setting.Problem{Setting: "CODEHUB_METRICS_LISTEN", Why: err.Error(), Do: "free the port, or give another one"}
	}
	return l, nil
}

// serveMetrics serves /metrics at an address of its own until ctx ends.
func (s *server) serveMetrics(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.Handler())
	srv := s.cfg.Inbound.Server(mux)
	srv.ErrorLog = httpErrors(s.log)
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	s.log.Info("metrics are served", "listen", s.numbers.Addr().String())
	if err := srv.Serve(s.numbers); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// newTickMetric returns the metric of the leader's ticks.
func newTickMetric() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "codehub_tick_seconds", Help: "Time of a pass of the leading server over all workspaces.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	})
}

// backupMetric is the time of the last backup of the database.
func backupMetric(last func() time.Time) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "codehub_database_backup_last_success_timestamp_seconds",
		Help: "Time of the last backup of the database in the bucket, in Unix time; 0 on servers that do not lead.",
	}, func() float64 {
		if at := last(); !at.IsZero() {
			return float64(at.Unix())
		}
		return 0
	})
}

// collectionMetrics are the metrics of garbage collection.
type collectionMetrics struct{ status func() gc.Status }

var (
	collectedAt = prometheus.NewDesc("codehub_gc_last_seconds",
		"Time of the last garbage collection of this process, in Unix time; absent if there was none.", nil, nil)
	collectedFailed = prometheus.NewDesc("codehub_gc_last_failed",
		"Whether the last garbage collection failed (1) or not (0).", nil, nil)
	collectedArchives = prometheus.NewDesc("codehub_gc_archives",
		"Archives that the last garbage collection found, by verdict.", []string{"verdict"}, nil)
	collectedBytes = prometheus.NewDesc("codehub_gc_archive_bytes",
		"Size in bytes of the archives that the last garbage collection found, by verdict.", []string{"verdict"}, nil)
	removedArchives = prometheus.NewDesc("codehub_gc_removed_archives_total",
		"Archives that this process removed.", nil, nil)
	removedBytes = prometheus.NewDesc("codehub_gc_removed_bytes_total",
		"Size in bytes of the archives that this process removed.", nil, nil)
	failedRemovals = prometheus.NewDesc("codehub_gc_failed_removals_total",
		"Removals of archives that failed; codehub retries them.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m collectionMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		collectedAt, collectedFailed, collectedArchives, collectedBytes, removedArchives, removedBytes, failedRemovals,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m collectionMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	counter(removedArchives, float64(s.Removed))
	counter(removedBytes, float64(s.RemovedBytes))
	counter(failedRemovals, float64(s.Failed))
	if s.At.IsZero() {
		return
	}
	failed := 0.0
	if s.Err != "" {
		failed = 1
	}
	gauge(collectedAt, float64(s.At.Unix()))
	gauge(collectedFailed, failed)
	for verdict, n := range s.Counts {
		gauge(collectedArchives, float64(n), string(verdict))
		gauge(collectedBytes, float64(s.Bytes[verdict]), string(verdict))
	}
}
