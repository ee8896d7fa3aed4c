package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"codehub/internal/gc"
)

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
