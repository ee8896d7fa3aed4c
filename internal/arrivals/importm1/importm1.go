package importm1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/moby/moby/client"

	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// maxOldID is the maximum length of a recorded id; a ULID has 26 characters.
const maxOldID = 255

// Config configures an import. All fields are required unless marked optional.
type Config struct {
	Source Source
	Homes  string         // the folder of the first version's homes
	Docker *client.Client // the Docker of its containers

	DB     *postgres.DB
	Bucket *bucket.Bucket // after Check

	Storage      string // storage backend of this installation
	DefaultImage string // if the old image cannot be used
	// Images are those that workspaces may use; another one is replaced as well.
	Images    imageref.Allowed
	Image     string // optional: replaces the image of all workspaces
	Admin     string // optional: username of a new administrator
	JoinUsers bool   // users of the same name are the same person
	DryRun    bool   // report without changing anything

	Log *slog.Logger
	// Step is called after each step, and its error ends the import; optional,
	// for tests.
	Step func(step string) error
}

type run struct {
	Config
	homes  homes
	engine engine
	report Report
}

// Run imports what was not imported yet and reports the result for each user
// and workspace. On an error the report is partial. It can be interrupted and
// run again at any time.
func Run(ctx context.Context, cfg Config) (Report, error) {
	r := &run{Config: cfg, homes: homes{cfg.Homes}, engine: engine{cfg.Docker}}
	r.report = Report{DryRun: cfg.DryRun, Users: []User{}, Workspaces: []Workspace{}, UnknownHomes: []string{}, Warnings: []string{}}
	err := r.all(ctx)
	r.report.count()
	return r.report, err
}

func (r *run) all(ctx context.Context) error {
	if err := r.ready(ctx); err != nil {
		return err
	}
	release, err := r.DB.LockImport(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := r.noAdmin(ctx); err != nil {
		return err
	}
	if r.report.UnknownHomes, err = r.homes.unknown(r.Source.Workspaces); err != nil {
		return err
	}
	if n := r.Source.Others; n > 0 {
		r.report.Warnings = append(r.report.Warnings, fmt.Sprintf(
			"%d other connections to the first version's database are open. If the first version still runs, stop it and run the import again", n))
	}
	owners, err := r.users(ctx)
	if err != nil {
		return fmt.Errorf("import users: %w", err)
	}
	return r.workspaces(ctx, owners)
}

// ready checks the prerequisites before anything is changed.
func (r *run) ready(ctx context.Context) error {
	if slices.ContainsFunc(r.Source.Workspaces, func(w SourceWorkspace) bool { return !gone(w) && w.Status != "CREATED" }) {
		if err := r.homes.check(); err != nil {
			return err
		}
	}
	if _, err := r.engine.api.Ping(ctx, client.PingOptions{}); err != nil {
		return fmt.Errorf("list the old containers: %w", err)
	}
	return nil
}

// gone reports whether a workspace was deleted: the first version hides it by
// either field.
func gone(w SourceWorkspace) bool { return w.Status == "DELETED" || w.DeletedAt != nil }

func (r *run) workspaces(ctx context.Context, owners map[string]owner) error {
	begun, err := r.DB.Imports(ctx)
	if err != nil {
		return err
	}
	names := uniqueNames(slices.DeleteFunc(slices.Clone(r.Source.Workspaces), gone))
	var stopped error
	for _, m := range order(r.Source.Workspaces) {
		w := Workspace{OldID: m.ID, OldName: m.Name, Owner: r.ownerName(m, owners), Status: m.Status}
		switch {
		case stopped != nil:
			w.Result, w.Reason = Left, "not tried; the import ended before"
		default:
			err := r.workspace(ctx, m, owners[m.OwnerID], begun, names[m.ID], &w)
			if err != nil {
				w.Result, w.Reason = Left, err.Error()
			}
			if ctx.Err() != nil || errors.As(err, new(ended)) || r.affectsAll(ctx, err) {
				stopped = err
			}
		}
		if w.Result == Left {
			r.Log.WarnContext(ctx, "workspace left", "old_id", m.ID, "reason", w.Reason)
		} else {
			r.Log.InfoContext(ctx, "workspace "+w.Result, "old_id", m.ID, "workspace", w.ID)
		}
		r.report.Workspaces = append(r.report.Workspaces, w)
	}
	return stopped
}

// order sorts workspaces for the import: running ones first, the most recently
// used before others, since their users wait and the running limit applies.
func order(list []SourceWorkspace) []SourceWorkspace {
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b SourceWorkspace) int {
		ra, rb := runs(a), runs(b)
		switch {
		case ra && !rb:
			return -1
		case rb && !ra:
			return 1
		case ra:
			return b.UpdatedAt.Compare(a.UpdatedAt)
		}
		return 0 // oldest first, as listed
	})
	return sorted
}

func runs(w SourceWorkspace) bool {
	return !gone(w) && (w.Status == "RUNNING" || w.Status == "PROVISIONING")
}

func (r *run) ownerName(m SourceWorkspace, owners map[string]owner) string {
	if o := owners[m.OwnerID]; o.username != "" {
		return o.username
	}
	for _, u := range r.Source.Users {
		if u.ID == m.OwnerID {
			return u.Username
		}
	}
	return m.OwnerID
}

// affectsAll reports whether an error would fail every other workspace too, so
// that no further container is stopped.
func (r *run) affectsAll(ctx context.Context, err error) bool {
	if err == nil {
		return false
	}
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, io.ErrShortWrite) || workspace.CodeOf(err) == workspace.CodeUnavailable || r.engineDown(ctx)
}

func (r *run) engineDown(ctx context.Context) bool {
	_, err := r.engine.api.Ping(ctx, client.PingOptions{})
	return err != nil
}

// ended is the error with which a step ended the import.
type ended struct{ error }

func (e ended) Unwrap() error { return e.error }

func (r *run) step(name string) error {
	if r.Step == nil {
		return nil
	}
	if err := r.Step(name); err != nil {
		return ended{err}
	}
	return nil
}
