package reconcile

import (
	"errors"
	"log/slog"

	"codehub/internal/base/health"
)

// conditions are the outages and limits that keep workspaces from changing.
type conditions struct {
	docker     *health.Condition
	wall       *health.Condition
	open       *health.Condition // workspaces run without the isolation that they should have
	unchecked  *health.Condition // whether they do is not known
	bucketAway *health.Condition
	disk       *health.Condition // too little space is free
	space      *health.Condition // Docker has none left
	archives   *health.Condition // an archive does not fit on the disk of the archives
	orphaned   *health.Condition
	writes     *health.Condition
}

func newConditions(cfg Config) conditions {
	condition := func(name, failing, resolved string) *health.Condition {
		return cfg.Conditions.New(health.Config{Name: name, Failing: failing, Resolved: resolved, Level: slog.LevelError, Remind: outageLogInterval, Log: cfg.Log})
	}
	return conditions{
		docker:     condition("docker", "observation failed; workspaces are on hold", "observation recovered"),
		wall:       condition("wall", "network isolation check failed; no workspace will start", "network isolation restored"),
		open:       condition("isolation", "workspaces run without network isolation", "workspaces run with network isolation again"),
		unchecked:  condition("isolation-check", "network isolation could not be checked", "network isolation was checked again"),
		bucketAway: condition("bucket", "bucket not responding; archives are waiting", "bucket recovered"),
		disk:       condition("disk", "disk too full; starts and restores are waiting", "disk space recovered"),
		space:      condition("disk", "no space left on Docker's disk; operations are waiting", "no operation waits for disk space"),
		archives:   condition("archive-disk", "the disk of the archives is full; archives are waiting", "no archive waits for disk space"),
		orphaned:   condition("orphans", "too many orphaned containers; keeping all of them", "orphaned containers are removed again"),
		writes:     condition("writes", "write reconcile results failed; retrying", "reconcile results are written again"),
	}
}

// await reports what a term checks first as unknown until it has.
func (c conditions) await(cfg Config) {
	c.docker.Await()
	c.bucketAway.Await()
	if cfg.MinFree > 0 {
		c.disk.Await()
	}
}

func (c conditions) reset() {
	for _, each := range []*health.Condition{c.docker, c.wall, c.open, c.unchecked, c.bucketAway, c.disk, c.space, c.archives, c.orphaned, c.writes} {
		each.Reset()
	}
}

var errNoSpace = errors.New("no space left on Docker's disk; operations that need space are waiting")
