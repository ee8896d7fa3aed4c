// Package move is another installation as a source of arrivals. It reads it through its API. The
// source archives a workspace, and removes it only if it is still what was imported.
package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Config configures the source. All fields are required unless marked optional.
type Config struct {
	Client *client.Client // with an administrator's API token
	Remove bool           // remove imported workspaces from the source

	// Poll is the pause between two reads of a workspace that is being archived; 0: 1 s.
	Poll time.Duration
	// Limit is the time limit of each call to the source, also of a whole list, but not of
	// downloads; 0: 30 s.
	Limit time.Duration
	// Patience is how long failed reads of the source are repeated; 0: 1 min.
	Patience time.Duration
	// Stalled is how long archiving at the source may make no progress; 0: 30 min.
	Stalled time.Duration
}

type source struct {
	Config
	run *arrivals.Import
}

// New returns the source.
func New(cfg Config) arrivals.Source {
	cfg.Poll = cmp.Or(cfg.Poll, time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, 30*time.Second)
	cfg.Patience = cmp.Or(cfg.Patience, time.Minute)
	cfg.Stalled = cmp.Or(cfg.Stalled, 30*time.Minute)
	return &source{Config: cfg}
}

// Read implements arrivals.Source.
func (s *source) Read(ctx context.Context, r *arrivals.Import) (c arrivals.Content, err error) {
	s.run = r
	hold, _, err := r.DB.OnHold(ctx)
	if err != nil {
		return c, err
	}
	if hold != "" {
		return c, errors.New("this installation is on hold: run codehub reconcile-restore first")
	}
	from, err := read(ctx, s, s.Client.MoveSource)
	if client.CodeOf(err) == "not_found" {
		err = fmt.Errorf("the source is of a version from which workspaces cannot be moved; update it: %w", err)
	}
	if err != nil {
		return c, fmt.Errorf("ask the source: %w", err)
	}
	own, err := r.DB.Installation(ctx)
	switch {
	case err != nil:
		return c, err
	case !workspace.ValidID(from.Installation):
		return c, fmt.Errorf("the source has the invalid installation id %.50q", from.Installation)
	case from.Installation == own:
		return c, errors.New("source and target are the same installation")
	case from.OpenUntil == nil:
		return c, errors.New("the source does not allow moves now: run codehub allow-moves on its machine")
	}
	c.ID = from.Installation
	users, err := read(ctx, s, s.Client.Accounts)
	if err != nil {
		return c, fmt.Errorf("list the users of the source: %w", err)
	}
	for _, u := range users {
		c.Users = append(c.Users, s.person(u))
	}
	list, err := read(ctx, s, s.Client.WorkspacesToMove)
	if err != nil {
		return c, fmt.Errorf("list the workspaces of the source: %w", err)
	}
	for _, m := range slices.Backward(list) { // the source lists the newest first
		c.Workspaces = append(c.Workspaces, arrivals.Found{
			OwnerID: m.OwnerID, Home: &home{source: s, there: m},
			Workspace: arrivals.Workspace{OldID: m.ID, OldName: m.Name, State: m.State},
		})
	}
	return c, nil
}

// person describes a user of the source.
func (s *source) person(u api.Account) arrivals.Person {
	p := arrivals.Person{OldID: u.ID, OldName: u.Username, User: postgres.User{Username: u.Username, Disabled: u.Disabled, MaxRunning: u.MaxRunning}}
	if !workspace.ValidID(u.ID) {
		p.Reason = "the id is not valid"
	}
	if u.Admin {
		p.Notes = append(p.Notes, "is an administrator at the source")
	}
	if u.Disabled {
		p.Notes = append(p.Notes, "is disabled, as at the source")
	}
	i := &identities{source: s}
	p.Complete, p.Added = i.read, i.logins
	return p
}

// fromSource classifies an error of the source's API: an answer about one workspace, or a
// failure of the source.
func fromSource(err error) error {
	if err == nil {
		return nil
	}
	if e := (*client.Error)(nil); errors.As(err, &e) && (e.Status == 404 || e.Status == 409) {
		return err
	}
	return arrivals.SourceError{Err: err}
}
