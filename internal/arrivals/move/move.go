package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Config configures a move. All fields are required unless marked optional.
type Config struct {
	Source    *client.Client // with an administrator's API token
	Selection Selection

	DB      *postgres.DB
	Bucket  *bucket.Bucket // after Check, except in a dry run
	Storage string         // storage backend of this installation
	Images  imageref.Allowed

	JoinUsers bool // users of the same name are the same person
	Remove    bool // remove moved workspaces from the source
	DryRun    bool // report without changing anything

	Log *slog.Logger
	// Poll is the pause between two reads of a workspace that is being archived; 0: 1 s.
	Poll time.Duration
	// Limit is the time limit of each call to the source, also of a whole list, but not of
	// downloads; 0: 30 s.
	Limit time.Duration
	// Patience is how long failed reads of the source are repeated; 0: 1 min.
	Patience time.Duration
	// Stalled is how long archiving at the source may make no progress; 0: 30 min.
	Stalled time.Duration
	// Step is called after each step of a workspace; optional, for tests.
	Step func(id workspace.ID, step string)
}

type run struct {
	Config
	source string // installation
	owners map[string]*owner
	begun  map[workspace.ID]postgres.Move
	report Report
}

// Run moves what was not moved yet and reports the result for each user and workspace. On an
// error the report is partial. It can be interrupted and run again at any time.
func Run(ctx context.Context, cfg Config) (Report, error) {
	cfg.Poll = cmp.Or(cfg.Poll, time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, 30*time.Second)
	cfg.Patience = cmp.Or(cfg.Patience, time.Minute)
	cfg.Stalled = cmp.Or(cfg.Stalled, 30*time.Minute)
	r := &run{Config: cfg, report: Report{DryRun: cfg.DryRun, Users: []User{}, Workspaces: []Workspace{}, Warnings: []string{}}}
	err := r.all(ctx)
	r.report.count()
	return r.report, err
}

func (r *run) all(ctx context.Context) error {
	release, err := r.DB.LockImport(ctx)
	if err != nil {
		return err
	}
	defer release()
	hold, _, err := r.DB.OnHold(ctx)
	if err != nil {
		return err
	}
	if hold != "" {
		return errors.New("this installation is on hold: run codehub reconcile-restore first")
	}
	if has, err := r.DB.HasAdmin(ctx); err != nil || !has {
		return errors.Join(err, errors.New("this installation has no administrator yet: start codehub once and set it up"))
	}
	return errors.Join(r.moves(ctx), r.sweep(ctx))
}

// moves moves the selected users and workspaces.
func (r *run) moves(ctx context.Context) error {
	users, list, err := r.selected(ctx)
	if err != nil {
		return err
	}
	if err := r.planOwners(ctx, users); err != nil {
		return err
	}
	err = r.workspaces(ctx, list)
	return errors.Join(err, r.users(ctx, users, err))
}

// selected reads the source and returns the selected users and workspaces.
func (r *run) selected(ctx context.Context) ([]api.Account, []api.MoveWorkspace, error) {
	from, err := read(ctx, r, r.Source.MoveSource)
	if client.CodeOf(err) == "not_found" {
		err = fmt.Errorf("the source is of a version from which workspaces cannot be moved; update it: %w", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("ask the source: %w", err)
	}
	own, err := r.DB.Installation(ctx)
	switch {
	case err != nil:
		return nil, nil, err
	case !workspace.ValidID(from.Installation):
		return nil, nil, fmt.Errorf("the source has the invalid installation id %.50q", from.Installation)
	case from.Installation == own:
		return nil, nil, errors.New("source and target are the same installation")
	case from.OpenUntil == nil:
		return nil, nil, errors.New("the source does not allow moves now: run codehub allow-moves on its machine")
	}
	r.source, r.report.Source = from.Installation, from.Installation
	users, err := read(ctx, r, r.Source.Accounts)
	if err != nil {
		return nil, nil, fmt.Errorf("list the users of the source: %w", err)
	}
	list, err := read(ctx, r, r.Source.WorkspacesToMove)
	if err != nil {
		return nil, nil, fmt.Errorf("list the workspaces of the source: %w", err)
	}
	if r.begun, err = r.DB.Moves(ctx, r.source); err != nil {
		return nil, nil, err
	}
	chosen, moving, err := r.Selection.choose(users, list)
	if id := r.Selection.Workspace; err != nil && r.begun[workspace.ID(id)].Done {
		r.report.Workspaces = append(r.report.Workspaces, Workspace{ID: id, Source: Removed, Result: Already})
		err = nil
	}
	return chosen, moving, err
}

func (r *run) workspaces(ctx context.Context, list []api.MoveWorkspace) error {
	var stopped error
	for _, m := range list {
		w := Workspace{ID: m.ID, Name: m.Name, Owner: r.owners[m.OwnerID].username(m), State: m.State}
		if stopped != nil {
			w.Result, w.Reason = Left, "not tried; the move ended before"
		} else {
			err := r.workspace(ctx, m, &w)
			if err != nil {
				w.Result, w.Reason = Left, reasonOf(err)
			}
			if ctx.Err() != nil || affectsAll(err) {
				stopped = err
			}
		}
		if w.Result == Left {
			r.Log.WarnContext(ctx, "workspace left", "workspace", m.ID, "reason", w.Reason)
		} else {
			r.Log.InfoContext(ctx, "workspace "+r.report.Shown(w.Result), "workspace", m.ID)
		}
		r.report.Workspaces = append(r.report.Workspaces, w)
	}
	return stopped
}

// sourceError is a failure of the source that would fail every other workspace too.
type sourceError struct{ error }

func (e sourceError) Unwrap() error { return e.error }

// fromSource classifies an error of the source's API: an answer about one workspace, or a
// failure of the source.
func fromSource(err error) error {
	if err == nil {
		return nil
	}
	if e := (*client.Error)(nil); errors.As(err, &e) && (e.Status == 404 || e.Status == 409) {
		return err
	}
	return sourceError{fmt.Errorf("the source failed: %w", err)}
}

// affectsAll reports whether an error would fail every other workspace too.
func affectsAll(err error) bool {
	return errors.As(err, new(sourceError)) || errors.Is(err, store.ErrUnavailable) || workspace.CodeOf(err) == workspace.CodeUnavailable
}

// reasonOf is an error as the report shows it: the message of one with a code.
func reasonOf(err error) string {
	if e := (*workspace.Error)(nil); errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

func (r *run) step(id workspace.ID, name string) {
	if r.Step != nil {
		r.Step(id, name)
	}
}
