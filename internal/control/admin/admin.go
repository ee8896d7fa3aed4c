// Package admin serves administrators: the status of the servers, orphans, accounts, and
// groups. The API and the dashboard use it. The store checks in the database that
// the caller is an administrator, since a session may be out of date.
package admin

import (
	"cmp"
	"context"
	"net/url"
	"time"

	"codehub/api"
	"codehub/internal/control/replica"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Config configures a Service.
type Config struct {
	Store     *postgres.DB
	Passwords *auth.Auth
	// URL is CODEHUB_URL, of the links of invitations.
	URL *url.URL
	// Self is the server that answers; nil in a command that works on the database alone.
	Self *replica.Replica
	// Runtime is CODEHUB_RUNTIME, and Nodes the machines that it runs on; nil: one.
	Runtime string
	Nodes   runtime.Nodes
	// Builds are the images that this server makes; nil: none.
	Builds *imagebuild.Builder
	// Settings are those of this server.
	Settings api.Settings
	// OrphanDelay is CODEHUB_ORPHAN_DELAY.
	OrphanDelay time.Duration
	// DrillInterval is CODEHUB_BACKUP_DRILL_INTERVAL; 0 is 30 days.
	DrillInterval time.Duration
}

// Service serves administrators. It is safe for concurrent use.
type Service struct{ cfg Config }

// New makes a Service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// AdminStatus returns the state of the servers and the workspaces.
func (s *Service) AdminStatus(ctx context.Context, caller workspace.Caller) (api.AdminStatus, error) {
	o, err := s.cfg.Store.Overview(ctx, caller)
	if err != nil {
		return api.AdminStatus{}, err
	}
	out := o.AdminStatus
	backups, err := s.cfg.Store.HomeBackupState(ctx, cmp.Or(s.cfg.DrillInterval, 30*24*time.Hour))
	if err != nil {
		return api.AdminStatus{}, err
	}
	out.Backups = backups.BackupStatus
	out.Runtime, out.Servers, out.Images = s.cfg.Runtime, make([]api.Server, 0, len(o.Servers)), s.images()
	for _, r := range o.Servers {
		health := s.cfg.Self.HealthOf(r)
		out.Servers = append(out.Servers, api.Server{
			ID: r.ID, Hostname: r.Hostname, Version: r.Version, StartedAt: r.StartedAt, SeenAt: r.SeenAt, FlushedAt: r.FlushedAt,
			Leads: r.Leads, Alive: r.Alive, Backends: health.Backends, Conditions: health.Conditions,
		})
		out.TickedAt, out.ObservedAt = later(out.TickedAt, health.TickedAt), later(out.ObservedAt, health.ObservedAt)
		if r.Alive { // the leader is the only one that reports these
			out.Backups.Late += health.LateBackups
			out.Backups.OverLimit += health.OverLimit
			out.Backups.DatabaseAt = later(out.Backups.DatabaseAt, health.DatabaseBackedUp)
		}
	}
	out.LostNodes, err = s.lostNodes(ctx, caller)
	return out, err
}

// Settings returns the settings of this server, without secrets.
func (s *Service) Settings(ctx context.Context, caller workspace.Caller) (api.Settings, error) {
	if _, err := s.cfg.Store.NamesOf(ctx, caller, nil); err != nil { // CodeForbidden
		return api.Settings{}, err
	}
	return s.cfg.Settings, nil
}

// later is the later of two times, of which the first may be missing and the second zero.
func later(a *time.Time, b time.Time) *time.Time {
	if b.IsZero() || a != nil && a.After(b) {
		return a
	}
	return &b
}

// Orphans lists the orphans and set-aside volumes that the leader found, oldest first.
func (s *Service) Orphans(ctx context.Context, caller workspace.Caller, page postgres.Page) (api.OrphanList, error) {
	found, next, err := s.cfg.Store.Orphans(ctx, caller, page)
	if err != nil {
		return api.OrphanList{}, err
	}
	list := make([]api.Orphan, len(found))
	for i, o := range found {
		list[i] = api.Orphan{
			Kind: o.Kind, Name: o.Name, WorkspaceID: o.WorkspaceID, Detail: o.Detail, FirstSeenAt: o.FirstSeenAt,
		}
		if !o.Kept {
			at := o.FirstSeenAt.Add(s.cfg.OrphanDelay)
			list[i].RemovedAfter = &at
		}
	}
	return api.OrphanList{Orphans: list, NextCursor: next}, nil
}
