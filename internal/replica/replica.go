// Package replica registers this process among the servers of a database, sends its
// heartbeats, and compares its settings with theirs at the start.
package replica

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"codehub/api"
	"codehub/internal/postgres"
)

const (
	heartbeatInterval = 5 * time.Second
	heartbeatTimeout  = 5 * time.Second
	joinTimeout       = 20 * time.Second
)

// Config holds a Replica's dependencies.
type Config struct {
	DB       *postgres.DB
	Version  string
	Settings Settings
	// Health returns what this server can reach; nil: not recorded.
	Health func() map[string]api.Breaker
	Log    *slog.Logger
}

// Replica is this process among the servers of its database.
type Replica struct {
	cfg Config
	row postgres.Replica
}

// New returns a Replica with a new ID.
func New(cfg Config) *Replica {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Replica{cfg: cfg, row: postgres.Replica{
		ID: uuid.NewString(), Hostname: host, Version: cfg.Version, Settings: cfg.Settings.recorded(),
	}}
}

// ID returns the UUID of this process.
func (r *Replica) ID() string { return r.row.ID }

// Join registers this server. It must be called once, before other components
// start. The error is *Differs if a live server has another value of a setting that
// all must share.
func (r *Replica) Join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	r.row.Health = r.health()
	var warnings []Difference
	err := r.cfg.DB.JoinReplica(ctx, r.row, func(others []postgres.Replica) (err error) {
		warnings, err = r.cfg.Settings.compare(r.row.Hostname, others)
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range warnings {
		r.cfg.Log.Warn("setting differs between servers; the leader's value applies",
			"setting", d.Setting, "ours", d.Ours, "theirs", d.Theirs, "server", d.Host)
	}
	r.cfg.Log.Info("server registered", "replica", r.row.ID)
	return nil
}

// Run sends a heartbeat every 5 s until ctx ends. An outage of the database is
// logged once.
func (r *Replica) Run(ctx context.Context) error {
	t := time.NewTicker(heartbeatInterval)
	defer t.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		err := r.sendHeartbeat(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			r.cfg.Log.Warn("server heartbeat failed; retrying", "err", err)
		}
		failing = err != nil
	}
}

func (r *Replica) sendHeartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	row := r.row
	row.Health = r.health()
	return r.cfg.DB.BeatReplica(ctx, row)
}

// health returns the stored form of what this server can reach; see Health.
func (r *Replica) health() json.RawMessage {
	if r.cfg.Health == nil {
		return nil
	}
	b, err := json.Marshal(r.cfg.Health())
	if err != nil {
		return nil // cannot happen: breakers are plain data
	}
	return b
}

// Health returns what a server reported that it can reach, by the name of the
// dependency. It ignores what another version reports in another form.
func Health(r postgres.Replica) map[string]api.Breaker {
	var health map[string]api.Breaker
	if json.Unmarshal(r.Health, &health) != nil || health == nil {
		return map[string]api.Breaker{}
	}
	return health
}

// Leave removes this server from the list. It must be called last: the leader does
// not wait for the activity of a server that is not listed.
func (r *Replica) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeatTimeout)
	defer cancel()
	if err := r.cfg.DB.LeaveReplica(ctx, r.row.ID); err != nil {
		return fmt.Errorf("remove the server's row: %w", err)
	}
	return nil
}
