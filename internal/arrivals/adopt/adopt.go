// Package adopt is the bucket as a source of arrivals: archives of workspaces that the database
// does not have, because it is lost or older than they are. The newest complete archive of a
// workspace becomes the current one, the others earlier ones.
//
// An empty database takes over the installation of the archives, so that the
// remaining containers and volumes are its own again. A database with workspaces of
// its own gets copies of another installation's archives in its own part of the
// bucket; the other installation, which may be running, keeps its archives.
package adopt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"codehub/internal/archive"
	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// Config configures the source.
type Config struct {
	// Open opens an installation's part of the bucket.
	Open func(installation string) (*bucket.Bucket, error)
	// Alone ensures that no server runs on the database or starts during the
	// import, and returns an error otherwise.
	Alone func(ctx context.Context) error
	// NewUser returns a user to add; internal/users/auth implements it.
	NewUser func(ctx context.Context, caller workspace.Caller, username, password string) (postgres.User, error)

	Installation string // installation of the archives; empty: the only possible one
}

type source struct {
	Config
	run *arrivals.Import
	// takeOver: the database becomes that of the installation; copies: its archives are copied.
	takeOver, copies bool
	known            map[workspace.ID]bool // in the database
}

// New returns the source.
func New(cfg Config) arrivals.Source { return &source{Config: cfg} }

// Read implements arrivals.Source.
func (s *source) Read(ctx context.Context, r *arrivals.Import) (c arrivals.Content, err error) {
	s.run, c.Unrecorded = r, true
	if c.ID, err = s.choose(ctx); err != nil {
		return c, err
	}
	c.Begin = func(ctx context.Context) error { return s.begin(ctx, c.ID) }
	homes, unusable, err := survey(ctx, r.Bucket, c.ID)
	if err != nil {
		return c, err
	}
	for _, u := range unusable {
		r.Warn("archive skipped: %s: %s", u.key, u.why)
	}
	ids := make([]workspace.ID, len(homes))
	for i, h := range homes {
		ids[i] = h.ID
	}
	if s.known, err = r.DB.KnownWorkspaces(ctx, ids); err != nil {
		return c, err
	}
	for _, h := range homes {
		newest := h.Archives[0]
		c.Workspaces = append(c.Workspaces, arrivals.Found{
			OwnerID: newest.Owner, Home: &candidate{source: s, Home: h},
			Workspace: arrivals.Workspace{OldID: string(h.ID), OldName: newest.Name,
				State: fmt.Sprintf("%d archives until %s", len(h.Archives), newest.CreatedAt.UTC().Format(time.DateTime))},
		})
		if !s.known[h.ID] && !slices.ContainsFunc(c.Users, func(p arrivals.Person) bool { return p.OldID == newest.Owner }) {
			c.Users = append(c.Users, s.person(newest.Owner))
		}
	}
	return c, nil
}

// person describes the owner of archives, who gets a password that is shown once.
func (s *source) person(name string) arrivals.Person {
	p := arrivals.Person{OldID: name, OldName: name, User: postgres.User{Username: name}, Same: true}
	password := newPassword()
	p.Complete = func(ctx context.Context, u *postgres.ArrivedUser) error {
		made, err := s.NewUser(ctx, workspace.System, u.Username, password)
		u.Username, u.PasswordHash = made.Username, made.PasswordHash
		return err
	}
	p.Added = func(context.Context, string) ([]string, error) {
		return []string{"password, shown only once: " + password}, nil
	}
	return p
}

func newPassword() string {
	s := strings.ToLower(rand.Text())
	return s[0:5] + "-" + s[5:10] + "-" + s[10:15] + "-" + s[15:20]
}

// choose selects the installation whose archives are adopted, and how.
func (s *source) choose(ctx context.Context) (from string, err error) {
	ids, err := s.run.Bucket.Installations(ctx)
	if err != nil {
		return "", fmt.Errorf("list the bucket: %w", err)
	}
	own := s.run.Bucket.Installation
	used, err := s.run.DB.HasWorkspaces(ctx)
	if err != nil {
		return "", err
	}
	others := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == own })
	mine, err := s.hasArchives(ctx, own)
	if err != nil {
		return "", err
	}
	switch {
	case s.Installation != "" && !slices.Contains(ids, s.Installation):
		return "", fmt.Errorf("the bucket has no installation %q; it has: %s", s.Installation, strings.Join(ids, ", "))
	case s.Installation != "":
		from = s.Installation
	case mine || used && len(others) == 0:
		from = own
	case len(others) == 0:
		return "", errors.New("the bucket has no archives: set CODEHUB_ARCHIVE_URL to the bucket that has them")
	case len(others) == 1 && !used:
		from = others[0]
	default:
		return "", fmt.Errorf("the bucket has archives of other installations (%s): name one with --installation", strings.Join(others, ", "))
	}
	s.takeOver = from != own && !used && !mine
	s.copies = from != own && !s.takeOver
	if s.takeOver {
		s.run.Warn("the database takes the id of installation %s, and owns its remaining containers and volumes. "+
			"A home that was not archived is still in its volume, which is not changed, and blocks the restore of its workspace", from)
	}
	if others = slices.DeleteFunc(others, func(id string) bool { return id == from }); len(others) > 0 {
		s.run.Warn("the bucket also has archives of other installations: %s (see --installation)", strings.Join(others, ", "))
	}
	return from, nil
}

func (s *source) hasArchives(ctx context.Context, installation string) (bool, error) {
	list, err := s.run.Bucket.ListOf(ctx, installation)
	if err != nil {
		return false, fmt.Errorf("list the bucket: %w", err)
	}
	return slices.ContainsFunc(list, func(o bucket.Object) bool {
		return o.Parsed.Kind == bucket.Home || o.Parsed.Kind == bucket.Meta
	}), nil
}

// begin makes this the database of the installation of the archives, or prepares its own part of
// the bucket for copies.
func (s *source) begin(ctx context.Context, from string) error {
	if s.copies {
		return s.run.Bucket.Check(ctx, false)
	}
	if !s.takeOver {
		return nil
	}
	if err := s.Alone(ctx); err != nil {
		return err
	}
	b, err := s.Open(from)
	if err != nil {
		return err
	}
	// A copy of the archives may lack the mark.
	if err := b.Check(ctx, false); err != nil {
		return err
	}
	if err := s.run.DB.TakeInstallation(ctx, from); err != nil {
		return err
	}
	s.run.Log.Info("installation adopted", "installation", from, "before", s.run.Bucket.Installation)
	s.run.Bucket = b
	return nil
}

// candidate is a workspace with archives in the bucket.
type candidate struct {
	*source
	Home
	here *postgres.ArrivedWorkspace
}

// Again implements arrivals.Candidate. No adoption is recorded.
func (*candidate) Again(context.Context, postgres.Arrival, workspace.Workspace, *arrivals.Workspace) error {
	return nil
}

// Admit implements arrivals.Candidate. A workspace that is in the database is left as it is: garbage
// collection records archives that it does not know, and the takeover of a restored database
// (package rollback) decides which of them counts.
func (c *candidate) Admit(_ context.Context, line *arrivals.Workspace) (*postgres.ArrivedWorkspace, error) {
	if c.known[c.ID] {
		if c.copies {
			return nil, errors.New("this database already has a workspace with this id")
		}
		line.ID, line.Result = string(c.ID), arrivals.Already
		return nil, nil
	}
	newest := c.Archives[0]
	line.Home = &arrivals.Home{Entries: newest.Entries, Bytes: newest.meta.Bytes, Skipped: newest.Skipped, Size: newest.Size, SHA256: newest.Digest, Key: newest.Key}
	c.here = &postgres.ArrivedWorkspace{
		Arrival: postgres.Arrival{ID: c.ID}, Force: true, Found: true, CreatedAt: c.Archives[len(c.Archives)-1].CreatedAt,
		NewWorkspace: postgres.NewWorkspace{Name: newest.Name, ImageRef: c.run.DefaultImage, Desired: workspace.DesiredArchived},
	}
	for _, a := range c.Archives {
		c.here.Archives = append(c.here.Archives, a.Archive)
	}
	return c.here, nil
}

// Store implements arrivals.Candidate. It copies archives of another installation into this one's
// part of the bucket, oldest first, each with its .meta last, and skips those that do not match
// their .meta; if the newest does not, that is an error.
func (c *candidate) Store(ctx context.Context, _ string, _ *archive.Meta) (bool, error) {
	if !c.copies {
		return false, nil
	}
	c.here.Archives = nil
	for i, a := range slices.Backward(c.Archives) {
		err := c.copy(ctx, &a)
		if err != nil && (i == 0 || ctx.Err() != nil) {
			return false, fmt.Errorf("copy %s: %w", a.Key, err)
		}
		if err != nil {
			c.run.Warn("archive skipped: %s: %s", a.Key, err)
			continue
		}
		c.here.Archives = slices.Insert(c.here.Archives, 0, a.Archive)
	}
	return false, nil
}

func (c *candidate) copy(ctx context.Context, a *Archive) error {
	b, from := c.run.Bucket, a.Key
	to := b.Key(c.ID, a.OpID)
	if o, err := b.Store.Stat(ctx, archive.MetaKey(to)); err != nil || o.Size == 0 { // not by an earlier run
		in, err := b.Store.Get(ctx, from, 0)
		if err != nil {
			return err
		}
		defer in.Close()
		if err := b.Receive(ctx, to, a.meta, in); err != nil {
			return err
		}
	}
	a.Key = to
	return nil
}

// Unchanged implements arrivals.Candidate.
func (*candidate) Unchanged(context.Context) error { return nil }

// Leave implements arrivals.Candidate.
func (*candidate) Leave(context.Context) error { return nil }
