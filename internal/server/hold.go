package server

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// holdPoll is the interval at which each server reads whether codehub is on hold.
// Only the leader detects a hold; it records it in the database.
const holdPoll = 2 * time.Second

// watchHold keeps onHold up to date.
func (s *server) watchHold(ctx context.Context) error {
	tick := time.NewTicker(holdPoll)
	defer tick.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		why, _, err := s.db.OnHold(bounded)
		cancel()
		switch {
		case err != nil:
		case why == "":
			s.onHold.Store(nil)
		default:
			s.onHold.Store(&why)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// hold returns the reason for the hold and how to end it; empty if codehub is not
// on hold.
func (s *server) hold() string {
	why := s.marks.Status().Hold // sooner than the database
	if stored := s.onHold.Load(); why == "" && stored != nil {
		why = *stored
	}
	switch {
	case why != "":
		return "codehub is on hold: " + why + ". Run codehub reconcile-restore."
	case s.marks.Status().Watching:
		return "checking for another server: the database was moved, restored or copied"
	}
	return ""
}

// holdMetric is 1 while codehub is on hold.
func (s *server) holdMetric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "codehub_on_hold", Help: "1 if codehub is on hold because another database led last, otherwise 0.",
	}, func() float64 {
		if s.hold() != "" {
			return 1
		}
		return 0
	})
}

// databaseFiles identifies the files of the embedded database, so that a copy of
// them differs; empty with CODEHUB_DATABASE_URL.
func (s *server) databaseFiles() string {
	if s.private == nil {
		return ""
	}
	var st syscall.Stat_t
	if err := syscall.Stat(s.cfg.DataDir, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
