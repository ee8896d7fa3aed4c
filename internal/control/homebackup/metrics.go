package homebackup

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"codehub/internal/postgres"
	"codehub/internal/storage/storagejob"
)

// metrics are those of the backups that this process made.
type metrics struct {
	succeeded, unchanged, failed prometheus.Counter
	stored                       prometheus.Counter
	seconds                      prometheus.Histogram
	drilled, differences         prometheus.Counter
	results, drills              *prometheus.CounterVec
	lastMade, lastDrill          *atomic.Int64 // Unix time; 0: none
}

func newMetrics() metrics {
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "codehub_home_backups_total", Help: "Backups of homes that this process made, by result.",
	}, []string{"result"})
	drills := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "codehub_home_backup_drills_total", Help: "Backups of homes that this process compared, by result.",
	}, []string{"result"})
	return metrics{
		results: results, drills: drills,
		succeeded: results.WithLabelValues("done"), unchanged: results.WithLabelValues("unchanged"), failed: results.WithLabelValues("failed"),
		drilled: drills.WithLabelValues("same"), differences: drills.WithLabelValues("damaged"),
		stored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "codehub_home_backup_stored_bytes_total", Help: "Size in bytes of what backups of homes added to the bucket.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "codehub_home_backup_seconds", Help: "Time that a backup of a home took.", Buckets: prometheus.ExponentialBuckets(.5, 2, 15),
		}),
		lastMade: &atomic.Int64{}, lastDrill: &atomic.Int64{},
	}
}

// made counts a backup.
func (m metrics) made(b storagejob.Made, took time.Duration) {
	m.lastMade.Store(time.Now().Unix())
	m.seconds.Observe(took.Seconds())
	if b.Unchanged {
		m.unchanged.Inc()
		return
	}
	m.succeeded.Inc()
	m.stored.Add(float64(b.Stored))
}

// compared counts a drill.
func (m metrics) compared(damaged bool) {
	if damaged {
		m.differences.Inc()
	} else {
		m.drilled.Inc()
	}
}

func (m metrics) set(s postgres.HomeBackupState) {
	if s.ComparedAt != nil {
		m.lastDrill.Store(s.ComparedAt.Unix())
	}
}

// Metrics returns the metrics of the backups.
func (r *Runner) Metrics() []prometheus.Collector {
	at := func(name, help string, v *atomic.Int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if r.term.Load() == nil {
				return 0
			}
			return float64(v.Load())
		})
	}
	m := r.metrics
	return []prometheus.Collector{
		m.results, m.drills, m.stored, m.seconds,
		at("codehub_home_backup_last_success_timestamp_seconds", "Time of the last backup of a home by this process, in Unix time; 0 on servers that do not lead.", m.lastMade),
		at("codehub_home_backup_drill_last_timestamp_seconds", "Time of the last comparison of a backup of a home, in Unix time; 0 on servers that do not lead.", m.lastDrill),
	}
}
