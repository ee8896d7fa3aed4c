package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"codehub/internal/activity"
	"codehub/internal/workspace"
)

// The load: records per second, connections that record, workspaces that they
// belong to, and the duration.
const (
	activityRate        = 100_000
	activityConnections = 2_000
	activityWorkspaces  = 1_000
	activityFor         = 5 * time.Second
)

// activityCost measures the processor time of records as a share of one core.
// Goroutines record in batches every 10 ms, one goroutine for 100 connections.
// The time of the same loop without records is subtracted.
func activityCost(ctx context.Context, _ int) error {
	with, made, err := activityLoad(ctx, true)
	if err != nil {
		return err
	}
	without, _, err := activityLoad(ctx, false)
	if err != nil {
		return err
	}
	share := with - without
	fmt.Printf("activity: %d records per second over %d connections: %.2f %% of one core (at most 5 %%), %.0f ns each: %s\n",
		int(float64(made)/activityFor.Seconds()), activityConnections, 100*share, share*1e9/activityRate, verdict(share <= 0.05))
	return nil
}

// activityLoad returns the share of a core that was used, and the number of
// records.
func activityLoad(ctx context.Context, record bool) (share float64, made int, err error) {
	r := activity.New()
	marks := make([]*activity.Mark, activityConnections)
	for i := range marks {
		marks[i] = r.Mark(workspace.ID(fmt.Sprint("bench-", i%activityWorkspaces)))
		defer marks[i].Release()
	}
	const (
		each  = 100 // connections to a goroutine
		pause = 10 * time.Millisecond
	)
	turns := int(activityFor / pause)
	batch := activityRate / int(time.Second/pause) / (activityConnections / each)
	before, err := processorTime()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	var all sync.WaitGroup
	for first := 0; first < len(marks); first += each {
		mine := marks[first : first+each]
		all.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			at := 0
			for range turns {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				for range batch {
					if at++; at == len(mine) {
						at = 0
					}
					if record {
						mine[at].Touch(activity.Typing)
					}
				}
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	after, err := processorTime()
	if err != nil {
		return 0, 0, err
	}
	if seen := len(r.Since(time.Time{})); record && seen != activityWorkspaces {
		return 0, 0, fmt.Errorf("%d workspaces of %d were recorded: %w", seen, activityWorkspaces, context.Cause(ctx))
	}
	return (after - before).Seconds() / took.Seconds(), turns * batch * (activityConnections / each), ctx.Err()
}

// processorTime returns the user and system time of this process.
func processorTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read the processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
