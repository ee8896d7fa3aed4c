// Package replica registers this process among the servers of a database, sends its
// heartbeats, and compares its settings with theirs at the start.
package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"codehub/api"
	"codehub/internal/base/health"
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
	// Health returns the health that the heartbeat reports; nil: none.
	Health func() Health
	Log    *slog.Logger
	// Conditions lists that the heartbeat fails; nil: it is only logged.
	Conditions *health.Monitor
}

// Replica is this process among the servers of its database.
type Replica struct {
	cfg       Config
	row       postgres.Replica
	heartbeat *health.Condition
}

// New returns a Replica with a new ID.
func New(cfg Config) *Replica {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Replica{cfg: cfg, row: postgres.Replica{
		ID: uuid.NewString(), Hostname: host, Version: cfg.Version, Settings: cfg.Settings.recorded(),
	}, heartbeat: cfg.Conditions.New(health.Config{
		Name: "heartbeat", Failing: "server heartbeat failed; retrying", Resolved: "server heartbeat recovered", Level: slog.LevelWarn, Log: cfg.Log,
	})}
}

// ID returns the UUID of this process.
func (r *Replica) ID() string { return r.row.ID }

// Join registers this server. It must be called once, before other components
// start. The error is *Differs if a live server has another value of a setting that
// all must share, and *postgres.Outdated if the database is a newer version's.
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

// Run sends a heartbeat every 5 s until ctx ends. The error is *postgres.Outdated once a newer
// version has migrated the database so that this server does not work with it: it has to end.
func (r *Replica) Run(ctx context.Context) error {
	t := time.NewTicker(heartbeatInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		err := r.sendHeartbeat(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if outdated := (*postgres.Outdated)(nil); errors.As(err, &outdated) {
			return err
		}
		r.heartbeat.Set(err)
	}
}

func (r *Replica) sendHeartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	row := r.row
	row.Health = r.health()
	return r.cfg.DB.BeatReplica(ctx, row)
}

// Health is the health of a server, as it is stored with its heartbeat.
type Health struct {
	Backends   map[string]api.Breaker `json:"backends"`
	Conditions []api.ServerCondition  `json:"conditions"` // failing ones
	// Of the leader, and of a server that led before.
	TickedAt   time.Time `json:"ticked_at,omitzero"`
	ObservedAt time.Time `json:"observed_at,omitzero"`
	// Of the leader: see api.BackupStatus.
	LateBackups      int       `json:"late_backups,omitzero"`
	OverLimit        int       `json:"over_backup_limit,omitzero"`
	DatabaseBackedUp time.Time `json:"database_backed_up,omitzero"`
}

// health is Config.Health, as it is stored.
func (r *Replica) health() json.RawMessage {
	if r.cfg.Health == nil {
		return nil
	}
	b, err := json.Marshal(r.cfg.Health())
	if err != nil {
		return nil // cannot happen: Health is plain data
	}
	return b
}

// HealthOf returns the health of a listed server: this server's own as it is now, since a full
// disk may keep it from being stored, and that of any other as of its last heartbeat. It is
// empty if the other stored it in the form of another version. On a nil Replica, every server
// is another one.
func (r *Replica) HealthOf(listed postgres.Replica) Health {
	if r != nil && r.cfg.Health != nil && listed.ID == r.ID() {
		return r.cfg.Health()
	}
	var h Health
	if json.Unmarshal(listed.Health, &h) != nil || h.Backends == nil {
		return Health{Backends: map[string]api.Breaker{}, Conditions: []api.ServerCondition{}}
	}
	return h
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
