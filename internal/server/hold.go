package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"

	"github.com/prometheus/client_golang/prometheus"
)

// holdPoll is the interval at which each server reads whether codehub is on hold.
// Only the leader detects a hold; it records it in the database.
const holdPoll = 2 * time.Second

// hold is whether codehub is on hold. It is a condition on every server.
type hold struct {
	db     *postgres.DB
	marks  *mark.Keeper
	stored *health.Condition // as the database had it last
}

func newHold(db *postgres.DB, marks *mark.Keeper, conditions *health.Monitor, log *slog.Logger) *hold {
	return &hold{db: db, marks: marks, stored: conditions.New(health.Config{
		Name: "hold", Failing: "codehub is on hold, as recorded in the database", Resolved: "codehub is no longer on hold, as recorded in the database", Level: slog.LevelWarn, Log: log,
	})}
}

// Run reads periodically whether codehub is on hold, until ctx ends.
func (h *hold) Run(ctx context.Context) error {
	tick := time.NewTicker(holdPoll)
	defer tick.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		why, _, err := h.db.OnHold(bounded)
		cancel()
		if err == nil {
			h.stored.Set(health.Error(why))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// reason returns the reason for the hold; empty if codehub is not on hold.
func (h *hold) reason() string {
	return cmp.Or(h.marks.Status().Hold, h.stored.Text()) // the keeper knows sooner
}

// holdMetric is 1 while codehub is on hold.
func holdMetric(conditions *health.Monitor) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "codehub_on_hold", Help: "1 if codehub is on hold because another database led last, otherwise 0.",
	}, func() float64 {
		if conditions.Err("hold") != nil {
			return 1
		}
		return 0
	})
}

// databaseFiles identifies the files of the embedded database, so that a copy of
// them differs; empty with CODEHUB_DATABASE_URL.
func databaseFiles(private *embedded.Server, dataDir string) string {
	if private == nil {
		return ""
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dataDir, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
