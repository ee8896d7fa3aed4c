// Package replica is this process among the servers of one database: it has an
// id of its own, says that it is alive, and sees at its start that it goes with
// the others.
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
	beatEvery  = 5 * time.Second
	beatWithin = 5 * time.Second
	joinWithin = 20 * time.Second
)

// Config is what a Replica is made of.
type Config struct {
	DB       *postgres.DB
	Version  string
	Settings Settings
	// Health says what this server can reach; nil: nothing is said.
	Health func() map[string]api.Breaker
	Log    *slog.Logger
}

// Replica is this process among the servers of its database.
type Replica struct {
	cfg Config
	row postgres.Replica
}

// New makes a Replica with an id that no process has had before.
func New(cfg Config) *Replica {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Replica{cfg: cfg, row: postgres.Replica{
		ID: uuid.NewString(), Hostname: host, Version: cfg.Version, Settings: cfg.Settings.recorded(),
	}}
}

// ID is a UUID, of this process alone.
func (r *Replica) ID() string { return r.row.ID }

// Join records this server with the others; to be called once, before anything
// of it works. The error is *Differs if a server that is alive works with other
// settings where all must have the same.
func (r *Replica) Join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinWithin)
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
		r.cfg.Log.Warn("another server of this database has another setting; whoever leads goes by its own",
			"setting", d.Setting, "ours", d.Ours, "theirs", d.Theirs, "server", d.Host)
	}
	r.cfg.Log.Info("joined the servers of this database", "replica", r.row.ID)
	return nil
}

// Run says every 5 s that this server is alive, until ctx ends. A database that
// does not answer is reported once, and told again as soon as it does.
func (r *Replica) Run(ctx context.Context) error {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		err := r.beat(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			r.cfg.Log.Warn("the database does not hear that this server is alive; it is tried again", "err", err)
		}
		failing = err != nil
	}
}

func (r *Replica) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatWithin)
	defer cancel()
	row := r.row
	row.Health = r.health()
	return r.cfg.DB.BeatReplica(ctx, row)
}

// health is what this server can reach, as it is stored; see Health.
func (r *Replica) health() json.RawMessage {
	if r.cfg.Health == nil {
		return nil
	}
	b, err := json.Marshal(r.cfg.Health())
	if err != nil {
		return nil // breakers are plain data: it cannot happen
	}
	return b
}

// Health is what a server said it can reach, by the backend's name. What a server
// of another version says in another form is left out.
func Health(r postgres.Replica) map[string]api.Breaker {
	var health map[string]api.Breaker
	if json.Unmarshal(r.Health, &health) != nil || health == nil {
		return map[string]api.Breaker{}
	}
	return health
}

// Leave takes this server off the list. It comes last: after it nobody waits
// for what this server still had to hand on.
func (r *Replica) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beatWithin)
	defer cancel()
	if err := r.cfg.DB.LeaveReplica(ctx, r.row.ID); err != nil {
		return fmt.Errorf("leave the other servers: %w", err)
	}
	return nil
}
