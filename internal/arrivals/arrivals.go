package arrivals

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Source has users and workspaces to import.
type Source interface {
	// Read lists them. It changes nothing.
	Read(ctx context.Context, r *Import) (Content, error)
}

// Content is what a source has.
type Content struct {
	ID         string // an installation or postgres.FirstVersion
	Unrecorded bool   // what is imported is not recorded: the archives themselves show it
	Users      []Person
	Workspaces []Found // in the order of the import
	// Begin is called before the first change, and not in a dry run; optional.
	Begin func(context.Context) error
}

// Found is a workspace of a source.
type Found struct {
	OwnerID   string    // of a Person
	Workspace           // as the source describes it
	Home      Candidate // nil: it is only reported, as it is
}

// Candidate brings one workspace of a source here. The methods are called in their order, and their
// errors are why the workspace was left. The line of the report is the same in all calls.
type Candidate interface {
	// Again treats a workspace that an earlier run imported, and that is here: it finishes at the
	// source what that run may have left. It changes nothing here, and nothing at all in a dry run.
	Again(ctx context.Context, a postgres.Arrival, here workspace.Workspace, line *Workspace) error
	// Admit returns the workspace to add, which is kept up to date until it is added, or nil if
	// there is nothing to add, with a result in the line. It changes nothing here.
	Admit(ctx context.Context, line *Workspace) (*postgres.ArrivedWorkspace, error)
	// Store stores the archive and then its .meta, which it completes with the archive's figures.
	// stored is false if the workspace has no home yet.
	Store(ctx context.Context, key string, meta *archive.Meta) (stored bool, err error)
	// Unchanged returns an error if the source no longer has what was stored.
	Unchanged(ctx context.Context) error
	// Leave finishes at the source. It is called after the workspace was added here.
	Leave(ctx context.Context) error
}

// Config configures an import. All fields are required unless marked optional.
type Config struct {
	Source    Source
	Selection Selection

	DB      *postgres.DB
	Bucket  *bucket.Bucket // after Check, except in a dry run
	Storage string         // storage backend of this installation
	// Images are those that workspaces may use. DefaultImage is used in place of others by sources
	// whose images cannot be changed any more.
	Images       imageref.Allowed
	DefaultImage string

	Image     string            // optional: replaces the image of all workspaces
	Owner     string            // optional: existing user who owns all workspaces
	Owners    map[string]string // optional: owners by their names at the source
	Admin     string            // optional: user of the source who becomes an administrator
	JoinUsers bool              // users of the same name are the same person
	DryRun    bool              // report without changing anything

	Log *slog.Logger
	// Step is called after each step, and its error ends the import; optional,
	// for tests.
	Step func(step string) error
}

// Import is one run.
type Import struct {
	Config
	content Content
	source  string            // in the record; empty: there is none
	users   map[string]string // ids of recorded users by those at the source
	owners  map[string]*owner
	planned map[string]bool // usernames that this run adds
	begun   map[string]postgres.Arrival
	report  Report
}

// Run imports what was not imported yet and reports the result for each user and workspace. On an
// error the report is partial. It can be interrupted and run again at any time.
func Run(ctx context.Context, cfg Config) (Report, error) {
	r := &Import{Config: cfg, report: Report{DryRun: cfg.DryRun, Users: []User{}, Workspaces: []Workspace{}, Warnings: []string{}}}
	err := r.run(ctx)
	r.report.count()
	return r.report, err
}

func (r *Import) run(ctx context.Context) error {
	release, err := r.DB.LockImport(ctx)
	if err != nil {
		return err
	}
	defer release()
	return errors.Join(r.all(ctx), r.sweep(ctx))
}

func (r *Import) all(ctx context.Context) (err error) {
	if r.content, err = r.Source.Read(ctx, r); err != nil {
		return err
	}
	r.report.Source = r.content.ID
	if !r.content.Unrecorded {
		r.source = r.content.ID
	}
	if r.begun, err = r.DB.Arrivals(ctx, r.source); err != nil {
		return err
	}
	if r.users, err = r.DB.ArrivedUsers(ctx, r.source); err != nil {
		return err
	}
	users, list, err := r.Selection.choose(r.content.Users, r.content.Workspaces)
	if a := r.begun[r.Selection.Workspace]; err != nil && a.Done {
		r.report.Workspaces = append(r.report.Workspaces, Workspace{OldID: a.OldID, ID: string(a.ID), Source: Removed, Result: Already})
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.check(ctx, users); err != nil {
		return err
	}
	if r.content.Begin != nil && !r.DryRun {
		if err := r.content.Begin(ctx); err != nil {
			return err
		}
	}
	err = r.chooseOwners(ctx, users)
	if err == nil {
		err = r.workspaces(ctx, list)
	}
	return errors.Join(err, r.reportUsers(ctx, users))
}

// Warn adds a warning to the report.
func (r *Import) Warn(format string, args ...any) {
	r.report.Warnings = append(r.report.Warnings, fmt.Sprintf(format, args...))
}

func (r *Import) workspaces(ctx context.Context, list []Found) error {
	var stopped error
	for _, f := range list {
		w := f.Workspace
		w.Owner = r.ownerName(f)
		switch {
		case f.Home == nil:
		case stopped != nil:
			w.Result, w.Reason = Left, "not tried; the import ended before"
		default:
			err := r.workspace(ctx, f, &w)
			if err != nil {
				w.Result, w.Reason = Left, reasonOf(err)
			}
			if ctx.Err() != nil || affectsAll(err) {
				stopped = err
			}
		}
		if w.Result == Left {
			r.Log.WarnContext(ctx, "workspace left", "old_id", w.OldID, "reason", w.Reason)
		} else {
			r.Log.InfoContext(ctx, "workspace "+r.report.Shown(w.Result), "old_id", w.OldID, "workspace", w.ID)
		}
		r.report.Workspaces = append(r.report.Workspaces, w)
	}
	return stopped
}

// ownerName returns the name of a workspace's owner.
func (r *Import) ownerName(f Found) string {
	if o := r.owners[f.OwnerID]; o != nil && o.result != Left {
		return o.arrived.Username
	}
	for _, p := range r.content.Users {
		if p.OldID == f.OwnerID {
			return p.OldName
		}
	}
	return f.OwnerID
}

// SourceError is a failure of the source that would fail every other workspace too.
type SourceError struct{ Err error }

func (e SourceError) Error() string { return "the source failed: " + e.Err.Error() }
func (e SourceError) Unwrap() error { return e.Err }

// affectsAll reports whether an error would fail every other workspace too.
func affectsAll(err error) bool {
	return errors.As(err, new(SourceError)) || errors.As(err, new(ended)) ||
		errors.Is(err, store.ErrUnavailable) || errors.Is(err, io.ErrShortWrite) || workspace.CodeOf(err) == workspace.CodeUnavailable
}

// reasonOf is an error as the report shows it: the message of one with a code.
func reasonOf(err error) string {
	if e := (*workspace.Error)(nil); errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// ended is the error with which a step ended the import.
type ended struct{ error }

func (e ended) Unwrap() error { return e.error }

// Pass is called by sources after a step of theirs.
func (r *Import) Pass(step string) error {
	if r.Step == nil {
		return nil
	}
	if err := r.Step(step); err != nil {
		return ended{err}
	}
	return nil
}
