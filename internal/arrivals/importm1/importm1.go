// Package importm1 is codehub's first version as a source of arrivals: its users, workspaces and homes.
//
// That version (its last migration is of December 2025) has a PostgreSQL database
// with the tables users, sessions and workspaces, ULIDs as ids, and a status for each
// workspace: CREATED, PROVISIONING, RUNNING, STOPPING, STOPPED, DELETING, ERROR,
// DELETED. Passwords are argon2id hashes of argon2-cffi. Homes are folders,
// users/{user}/workspaces/{workspace}/home below one folder, mounted at /home/coder
// into containers named codehub-ws-{workspace} without labels.
//
// A home is packed into an archive, and the controller then restores it like any other
// archive. So a home is copied once by one writer.
//
// The source is only read, except for its containers: they are stopped before their
// home is packed, and removed once the home is stored here.
package importm1

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/moby/moby/client"

	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
)

// maxOldID is the maximum length of a recorded id; a ULID has 26 characters.
const maxOldID = 255

// Config configures the source.
type Config struct {
	Source Source
	Homes  string         // the folder of the first version's homes
	Docker *client.Client // the Docker of its containers
}

type first struct {
	Config
	run    *arrivals.Import
	homes  homes
	engine engine
}

// New returns the source.
func New(cfg Config) arrivals.Source {
	return &first{Config: cfg, homes: homes{cfg.Homes}, engine: engine{cfg.Docker}}
}

// Read implements arrivals.Source.
func (f *first) Read(ctx context.Context, r *arrivals.Import) (c arrivals.Content, err error) {
	f.run = r
	c.ID = postgres.FirstVersion
	if slices.ContainsFunc(f.Source.Workspaces, func(w SourceWorkspace) bool { return !gone(w) && w.Status != "CREATED" }) {
		if err := f.homes.check(); err != nil {
			return c, err
		}
	}
	if _, err := f.engine.api.Ping(ctx, client.PingOptions{}); err != nil {
		return c, fmt.Errorf("list the old containers: %w", err)
	}
	unknown, err := f.homes.unknown(f.Source.Workspaces)
	if err != nil {
		return c, err
	}
	if n := f.Source.Others; n > 0 {
		r.Warn("%d other connections to the first version's database are open. If the first version still runs, stop it and run the import again", n)
	}
	for _, u := range f.Source.Users {
		c.Users = append(c.Users, person(u))
	}
	for _, w := range order(f.Source.Workspaces) {
		c.Workspaces = append(c.Workspaces, arrivals.Found{
			OwnerID: w.OwnerID, Home: &home{first: f, there: w}, Workspace: arrivals.Workspace{OldID: w.ID, OldName: w.Name, State: w.Status},
		})
	}
	for _, dir := range unknown {
		c.Workspaces = append(c.Workspaces, arrivals.Found{Workspace: arrivals.Workspace{
			OldName: dir, Result: arrivals.Left, Reason: "a home of a workspace that is not in the first version's database",
		}})
	}
	return c, nil
}

// person describes a user of the first version.
func person(u SourceUser) arrivals.Person {
	p := arrivals.Person{OldID: u.ID, OldName: u.Username, Renamed: true}
	p.User = postgres.User{Username: username(u.Username), PasswordHash: u.PasswordHash, CreatedAt: u.CreatedAt}
	if len(u.ID) > maxOldID {
		p.Reason = "the id is too long"
	}
	switch matches, readable := auth.Matches(u.PasswordHash, "admin"); {
	case !readable:
		p.Notes = []string{"the password hash cannot be verified; set a new password before this user can log in"}
	case matches:
		p.Notes = []string{"the password is the first version's default; change it"}
	}
	return p
}

// gone reports whether a workspace was deleted: the first version hides it by
// either field.
func gone(w SourceWorkspace) bool { return w.Status == "DELETED" || w.DeletedAt != nil }

// order sorts workspaces for the import: running ones first, the most recently
// used before others, since their users wait and the running limit applies.
func order(list []SourceWorkspace) []SourceWorkspace {
	rank := func(w SourceWorkspace) int64 { // 0: not running; oldest first, as listed
		if runs(w) {
			return -w.UpdatedAt.UnixMicro()
		}
		return 0
	}
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b SourceWorkspace) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted
}

func runs(w SourceWorkspace) bool {
	return !gone(w) && (w.Status == "RUNNING" || w.Status == "PROVISIONING")
}
