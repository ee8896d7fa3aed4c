package adopt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// Config configures an adoption.
type Config struct {
	DB      *postgres.DB
	Session postgres.Session
	// Open opens an installation's part of the bucket; Own is this
	// installation's.
	Open func(installation string) (*bucket.Bucket, error)
	Own  *bucket.Bucket
	// Alone ensures that no server runs on the database or starts during the
	// adoption, and returns an error otherwise.
	Alone func(ctx context.Context) error
	// CreateUser creates a user; internal/users/auth implements it.
	CreateUser func(ctx context.Context, username, password string, admin bool) (postgres.User, error)

	Installation string            // installation of the archives; empty: the only possible one
	Owner        string            // owner of all workspaces; empty: the previous owners
	Owners       map[string]string // new owners by previous owner
	Admin        string            // created user who becomes an administrator
	Image        string
	Storage      string
	DryRun       bool
	Log          *slog.Logger
}

// Run adopts. Errors after the first possible change come with a report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	r := &run{Config: cfg, report: &Report{DryRun: cfg.DryRun, Others: []string{}, Users: []User{}, Workspaces: []Workspace{}, Unusable: []Unusable{}, Warnings: []string{}}}
	from, err := r.choose(ctx)
	if err != nil {
		return nil, err
	}
	homes, unusable, err := survey(ctx, r.Own, from)
	if err != nil {
		return nil, err
	}
	r.report.Unusable = append(r.report.Unusable, unusable...)
	known, err := r.known(ctx, homes)
	if err != nil {
		return nil, err
	}
	missing, err := r.owners(ctx, homes, known)
	if err != nil {
		return nil, err
	}
	if r.report.TakenOver && !cfg.DryRun {
		if err := r.take(ctx, from); err != nil {
			return nil, err
		}
	}
	if r.report.Copied && !cfg.DryRun {
		if err := r.Own.Check(ctx, false); err != nil {
			return nil, err
		}
	}
	if err := r.makeUsers(ctx, missing); err != nil {
		return r.report, err
	}
	for _, h := range homes {
		if err := r.workspace(ctx, h, known); err != nil {
			return r.report, err
		}
	}
	return r.report, nil
}

// run is a running adoption.
type run struct {
	Config
	report *Report
	users  map[string]string // ids of owners by their names in the archives
}

// choose selects the installation whose archives are adopted, and how.
func (r *run) choose(ctx context.Context) (from string, err error) {
	ids, err := r.Own.Installations(ctx)
	if err != nil {
		return "", fmt.Errorf("list the bucket: %w", err)
	}
	own := r.Own.Installation
	used, err := r.DB.HasWorkspaces(ctx)
	if err != nil {
		return "", err
	}
	others := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == own })
	mine, err := r.hasArchives(ctx, own)
	if err != nil {
		return "", err
	}
	switch {
	case r.Installation != "" && !slices.Contains(ids, r.Installation):
		return "", fmt.Errorf("the bucket has no installation %q; it has: %s", r.Installation, strings.Join(ids, ", "))
	case r.Installation != "":
		from = r.Installation
	case mine || used && len(others) == 0:
		from = own
	case len(others) == 0:
		return "", errors.New("the bucket has no archives: set CODEHUB_ARCHIVE_URL to the bucket that has them")
	case len(others) == 1 && !used:
		from = others[0]
	default:
		return "", fmt.Errorf("the bucket has archives of other installations (%s): name one with --installation", strings.Join(others, ", "))
	}
	r.report.Installation = from
	r.report.TakenOver = from != own && !used && !mine
	r.report.Copied = from != own && !r.report.TakenOver
	for _, id := range ids {
		if id != from && id != own {
			r.report.Others = append(r.report.Others, id)
		}
	}
	return from, nil
}

func (r *run) hasArchives(ctx context.Context, installation string) (bool, error) {
	list, err := r.Own.ListOf(ctx, installation)
	if err != nil {
		return false, fmt.Errorf("list the bucket: %w", err)
	}
	return slices.ContainsFunc(list, func(o bucket.Object) bool {
		return o.Parsed.Kind == bucket.Home || o.Parsed.Kind == bucket.Meta
	}), nil
}

// take makes this the database of the installation of the archives.
func (r *run) take(ctx context.Context, from string) error {
	if err := r.Alone(ctx); err != nil {
		return err
	}
	b, err := r.Open(from)
	if err != nil {
		return err
	}
	// A copy of the archives may lack the mark.
	if err := b.Check(ctx, false); err != nil {
		return err
	}
	if err := r.DB.TakeInstallation(ctx, from); err != nil {
		return err
	}
	r.Log.Info("installation adopted", "installation", from, "before", r.Own.Installation)
	r.Own = b
	return nil
}

func (r *run) known(ctx context.Context, homes []home) (postgres.Holdings, error) {
	ids := make([]workspace.ID, len(homes))
	for i, h := range homes {
		ids[i] = h.id
	}
	return postgres.NewCollector(r.Session).Holdings(ctx, ids)
}

// ownerOf returns the username of a workspace's new owner.
func (r *run) ownerOf(h home) string {
	name := h.newest().meta.Owner
	if to, mapped := r.Owners[name]; mapped {
		return to
	}
	if r.Owner != "" {
		return r.Owner
	}
	return name
}

// owners finds the new owners and returns which do not exist.
func (r *run) owners(ctx context.Context, homes []home, known postgres.Holdings) (missing []string, err error) {
	r.users = map[string]string{}
	for _, h := range homes {
		name := r.ownerOf(h)
		if _, there := known.Workspaces[h.id]; there || r.users[name] != "" || slices.Contains(missing, name) {
			continue
		}
		u, err := r.DB.UserByName(ctx, name)
		switch {
		case err == nil:
			r.users[name] = u.ID
		case workspace.CodeOf(err) != workspace.CodeNotFound && workspace.CodeOf(err) != workspace.CodeInvalid:
			return nil, err
		case name == r.Owner:
			return nil, fmt.Errorf("user %q, who should own the workspaces, does not exist", name)
		default:
			missing = append(missing, name)
		}
	}
	return missing, r.someAdmin(ctx, missing)
}

// adminName is the username of the administrator that CODEHUB_ADMIN_PASSWORD
// creates.
const adminName = "admin"

// someAdmin refuses an adoption after which the installation would have users
// and no administrator, so that the setup page would be closed.
func (r *run) someAdmin(ctx context.Context, missing []string) error {
	if r.Admin != "" && !slices.Contains(missing, r.Admin) {
		return fmt.Errorf("user %q would not be created and cannot become an administrator", r.Admin)
	}
	has, err := r.DB.HasAdmin(ctx)
	if err != nil || has || len(missing) == 0 || r.Admin != "" || slices.Contains(missing, adminName) {
		return err
	}
	return fmt.Errorf("this installation has no administrator yet: start codehub once and set it up, "+
		"or name one of the workspaces' owners (%s) with --admin", strings.Join(missing, ", "))
}

// makeUsers creates the missing users, each with a password that is shown once.
func (r *run) makeUsers(ctx context.Context, missing []string) error {
	has, err := r.DB.HasAdmin(ctx)
	if err != nil {
		return err
	}
	for _, name := range missing {
		u := User{Username: name, Admin: name == r.Admin || !has && r.Admin == "" && name == adminName}
		r.users[name] = ""
		if !r.DryRun {
			u.Password = newPassword()
			made, err := r.CreateUser(ctx, name, u.Password, u.Admin)
			switch {
			case workspace.CodeOf(err) == workspace.CodeInvalid:
				r.Log.Warn("username not allowed; map it with --owner-map", "name", name, "err", err)
				continue
			case err != nil:
				return fmt.Errorf("create user %q: %w", name, err)
			}
			r.users[name] = made.ID
		}
		r.report.Users = append(r.report.Users, u)
	}
	return nil
}

func newPassword() string {
	s := strings.ToLower(rand.Text())
	return s[0:5] + "-" + s[5:10] + "-" + s[10:15] + "-" + s[15:20]
}

// workspace adopts one workspace.
func (r *run) workspace(ctx context.Context, h home, known postgres.Holdings) error {
	w := Workspace{
		ID: h.id, Owner: r.ownerOf(h), Name: h.newest().meta.WorkspaceName, OldName: h.newest().meta.WorkspaceName,
		Archives: len(h.archives), Bytes: h.newest().Size, Newest: h.newest().CreatedAt,
	}
	var err error
	if holder, there := known.Workspaces[h.id]; there {
		w.Name, w.Owner = holder.Name, ""
		err = r.there(ctx, h, holder, known.Archives[h.id], &w)
	} else {
		err = r.lost(ctx, h, &w)
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		w.Result, w.Reason = Left, err.Error()
		r.Log.Error("adopt workspace failed", "workspace", h.id, "err", err)
	}
	if w.Result == Left {
		r.report.Left++
	}
	r.report.Workspaces = append(r.report.Workspaces, w)
	return nil
}

// lost adds the row of a workspace that is not in the database.
func (r *run) lost(ctx context.Context, h home, w *Workspace) error {
	w.Result = Adopted
	if r.DryRun {
		return nil
	}
	owner := r.users[w.Owner]
	if owner == "" {
		w.Result, w.Reason = Left, fmt.Sprintf("the username %q is not allowed; map it to another with --owner-map", w.Owner)
		return nil
	}
	if r.report.Copied {
		var err error
		if h, err = r.copy(ctx, h); err != nil {
			return err
		}
	}
	name, adopted, err := r.DB.Adopt(ctx, postgres.Adoption{
		ID: h.id, OwnerID: owner, Name: w.OldName, ImageRef: r.Image,
		StorageBackend: r.Storage,
		CreatedAt:      h.archives[len(h.archives)-1].CreatedAt, Archives: h.list(),
	})
	if err != nil {
		return err
	}
	if w.Name = name; !adopted {
		w.Name, w.Result = w.OldName, Known // another run was faster
	}
	return nil
}

// there records the unknown archives of a workspace that is in the database.
func (r *run) there(ctx context.Context, h home, holder postgres.Holder, records []postgres.Record, w *Workspace) error {
	if r.report.Copied {
		w.Result, w.Reason = Left, "this database already has a workspace with this id"
		return nil
	}
	var news []workspace.Archive
	for _, a := range h.list() {
		if !slices.ContainsFunc(records, func(r postgres.Record) bool { return r.Key == a.Key }) {
			news = append(news, a)
		}
	}
	// Garbage collection may have recorded it already.
	latest := h.newest().Archive
	late := holder.DeletedAt != nil && latest.CreatedAt.After(*holder.DeletedAt) && holder.Home == workspace.HomeAbsent &&
		!slices.ContainsFunc(records, func(r postgres.Record) bool { return r.Key == latest.Key && (!r.Found || r.DeletingAt != nil) })
	switch {
	case late:
		w.Result = Revived
		if r.DryRun {
			return nil
		}
		name, revived, err := r.DB.Revive(ctx, h.id, h.list())
		if err != nil {
			return err
		}
		if w.Name = name; !revived {
			w.Name, w.Result, w.Reason = holder.Name, Left, "the workspace is deleted and cannot be undeleted now"
		}
		return nil
	case len(news) == 0:
		w.Result = Known
		return nil
	}
	w.Result = Recorded
	if r.DryRun {
		return nil
	}
	return postgres.NewCollector(r.Session).Settle(ctx, h.id, func(time.Time, postgres.Holder, []postgres.Record) []postgres.Finding {
		out := make([]postgres.Finding, len(news))
		for i, a := range news {
			out[i] = postgres.Finding{
				Key: a.Key, OpID: a.OpID, Add: true, Complete: true,
				Digest: a.Digest, Size: a.Size, Entries: a.Entries, Skipped: a.Skipped, CreatedAt: a.CreatedAt,
			}
		}
		return out
	})
}
