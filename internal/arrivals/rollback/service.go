package rollback

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"codehub/api"
	"codehub/internal/arrivals/adopt"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// Store is the database; *postgres.DB implements it. Its methods are for
// administrators.
type Store interface {
	RollbackState(ctx context.Context, caller workspace.Caller) (postgres.RollbackState, error)
	ApplyRollback(ctx context.Context, caller workspace.Caller, steps []postgres.RollbackStep) error
}

// Runtime lists volumes and containers; runtime.Runtime implements it.
type Runtime interface {
	Volumes(ctx context.Context) ([]runtime.Volume, error)
	Containers(ctx context.Context) ([]runtime.Container, error)
	Mark(ctx context.Context) (m workspace.Mark, found bool, err error)
}

// Config configures a Service.
type Config struct {
	Store       Store
	Runtime     Runtime
	Bucket      *bucket.Bucket
	DeleteGrace time.Duration
	Log         *slog.Logger
	// Defaults are for workspaces whose row is lost; their image is not known.
	service.Defaults
}

// Service plans and applies takeovers.
type Service struct {
	cfg Config

	mu       sync.Mutex
	found    []adopt.Home // the last survey of the bucket
	surveyed time.Time
}

// surveyAge is how long the pages of a plan after the first rely on its survey of the
// bucket, which reads something of every archive.
const surveyAge = 10 * time.Minute

// New returns a Service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// RestorePlan returns a page of what ApplyRestore would do with in, and changes nothing.
// CodeInvalid for a choice that the plan does not allow.
func (s *Service) RestorePlan(ctx context.Context, caller workspace.Caller, in api.ApplyRestore, page postgres.Page) (api.RestorePlan, error) {
	if page.Cursor != "" && !workspace.ValidID(page.Cursor) {
		return api.RestorePlan{}, workspace.Errorf(workspace.CodeInvalid, "Invalid cursor.")
	}
	state, steps, err := s.steps(ctx, caller, in, page.Cursor != "")
	if err != nil {
		return api.RestorePlan{}, err
	}
	out := api.RestorePlan{OnHold: state.Hold != "", Reason: state.Hold, Since: state.Since, Workspaces: []api.RestoreStep{}}
	for _, step := range steps {
		switch {
		case step.unremarkable():
			out.Unchanged++
		case string(step.ID) <= page.Cursor:
		case len(out.Workspaces) < page.Size():
			out.Workspaces = append(out.Workspaces, described(step))
		default:
			out.NextCursor = out.Workspaces[len(out.Workspaces)-1].ID
		}
	}
	return out, nil
}

// ApplyRestore applies the plan with the choices of in and ends the hold, so
// that this database leads. CodeNotOnHold; CodeInvalid for a choice that the plan does
// not allow.
func (s *Service) ApplyRestore(ctx context.Context, caller workspace.Caller, in api.ApplyRestore) (api.RestoreResult, error) {
	var out api.RestoreResult
	state, steps, err := s.steps(ctx, caller, in, false)
	if err != nil {
		return out, err
	}
	if state.Hold == "" {
		return out, workspace.Errorf(workspace.CodeNotOnHold, "codehub is not on hold.")
	}
	var changes []postgres.RollbackStep
	for _, step := range steps {
		if c, ok := s.change(step); ok {
			changes = append(changes, c)
		}
	}
	if err := s.cfg.Store.ApplyRollback(ctx, caller, changes); err != nil {
		return out, err
	}
	s.mu.Lock()
	s.found, s.surveyed = nil, time.Time{} // of the plan, which is carried out
	s.mu.Unlock()
	for _, step := range steps {
		if step.Action == Keep {
			out.Unchanged++
			continue
		}
		out.Changed++
		s.cfg.Log.Info("workspace taken up after a restore", "workspace", step.ID, "action", step.describe(), "reason", step.Reason)
	}
	return out, nil
}

// steps reads database, Docker and bucket, and plans with the choices of in. The database
// is read first, so that later changes to it are refused when the plan is written. A later
// page relies on the survey of the bucket for the first one.
func (s *Service) steps(ctx context.Context, caller workspace.Caller, in api.ApplyRestore, later bool) (postgres.RollbackState, []Step, error) {
	state, err := s.cfg.Store.RollbackState(ctx, caller)
	if err != nil {
		return state, nil, err
	}
	steps, err := s.plan(ctx, state, later)
	if err != nil {
		return state, nil, unavailable(err)
	}
	steps, err = Choose(steps, Choice{Only: in.Only, KeepDatabase: in.KeepDatabase})
	return state, steps, err
}

// plan compares state with Docker and the bucket.
func (s *Service) plan(ctx context.Context, state postgres.RollbackState, later bool) ([]Step, error) {
	views, err := s.views(ctx, state, later)
	if err != nil {
		return nil, err
	}
	facts, err := s.facts(ctx, state)
	if err != nil {
		return nil, err
	}
	return Plan(views, facts), nil
}

// facts reads the marks in Docker and the bucket, which show their age.
func (s *Service) facts(ctx context.Context, state postgres.RollbackState) (Facts, error) {
	f := Facts{Grace: s.cfg.DeleteGrace, LedUntil: state.Now, HoldSince: state.Since, WaitsSince: state.WaitsSince}
	docker, found, err := s.cfg.Runtime.Mark(ctx)
	if err != nil {
		return f, fmt.Errorf("read mark in runtime: %w", err)
	}
	last := docker.At
	theirs, kept, err := mark.Read(ctx, s.cfg.Bucket)
	if err != nil {
		return f, err
	}
	if theirs.At.After(last) {
		last = theirs.At
	}
	// Each mark is stored in Docker before the bucket.
	if found && kept && !docker.At.IsZero() && !theirs.At.IsZero() && docker.Serial < theirs.Serial {
		f.VolumesAsOf = &docker.At
	}
	if !last.IsZero() && last.Before(f.LedUntil) {
		f.LedUntil = last
	}
	return f, nil
}

func unavailable(err error) error {
	return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The volumes or the archive storage cannot be reached. Try again later.", Err: err}
}

func (s *Service) views(ctx context.Context, state postgres.RollbackState, later bool) ([]View, error) {
	byID := map[workspace.ID]*View{}
	view := func(id workspace.ID) *View {
		if byID[id] == nil {
			byID[id] = &View{ID: id}
		}
		return byID[id]
	}
	for i, row := range state.Rows {
		view(row.ID).Row = &state.Rows[i]
	}
	volumes, err := s.cfg.Runtime.Volumes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the volumes: %w", err)
	}
	for i, v := range volumes {
		if v.Foreign {
			continue // its workspace is unknown; its owner may set it aside
		}
		view(v.Workspace).Volume = &volumes[i]
	}
	containers, err := s.cfg.Runtime.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the containers: %w", err)
	}
	for i, c := range containers {
		view(c.Workspace).Container = &containers[i]
	}
	found, err := s.survey(ctx, later)
	if err != nil {
		return nil, fmt.Errorf("read the archives: %w", err)
	}
	for _, f := range found {
		v := view(f.ID)
		for _, a := range f.Archives {
			if v.Row == nil || !v.Row.Going[a.Key] {
				v.Archives = append(v.Archives, a)
			}
		}
	}
	out := make([]View, 0, len(byID))
	for id, v := range byID {
		if workspace.ValidID(string(id)) {
			out = append(out, *v)
		}
	}
	return out, nil
}

// change returns what a step writes; false: nothing.
func (s *Service) change(step Step) (postgres.RollbackStep, bool) {
	c := postgres.RollbackStep{
		ID: step.ID, Seen: step.Row, Owner: step.Owner(), Name: step.Name(), Undelete: step.Undelete, Runs: step.Runs,
		ImageRef: s.cfg.DefaultImage, StorageBackend: s.cfg.StorageBackend,
	}
	for _, a := range step.Archives {
		c.Archives = append(c.Archives, a.Archive)
	}
	v := step.Volume
	switch step.Action {
	case TakeVolume:
		// Which uid the home was given to is unknown. It may have been used, so that files
		// of root stay root's.
		c.Home = workspace.Home{State: workspace.HomeLive, Claim: v.Claim, Marker: v.Marker}
		if row := step.Row; row != nil && row.Home.Claim == v.Claim {
			known := workspace.Home{UID: row.Home.UID, NextUIDs: row.Home.NextUIDs}
			c.Home.NextUIDs = known.UserIDs()
		}
		c.StorageBackend, c.Desired = v.Storage, workspace.DesiredStandby
		if step.Runs {
			c.Desired = workspace.DesiredRunning
		}
		if a := step.best(); a != nil {
			c.Current = &a.Archive
		}
		return c, true
	case TakeArchive:
		c.Home = workspace.Home{State: workspace.HomeAbsent}
		if v != nil && v.Claim != "" && step.discards() {
			c.Home, c.StorageBackend = workspace.Home{State: workspace.HomeDiscarding, Claim: v.Claim}, v.Storage
		}
		c.Desired, c.Current, c.SetAside = workspace.DesiredArchived, &step.Archive.Archive, step.SetAside
		return c, true
	}
	if row := step.Row; row != nil && row.Home.State == workspace.HomeLive && (v == nil || v.Claim != row.Home.Claim) {
		c.Unchanged = true
		return c, true
	}
	return c, false
}

// survey reads which archives are in the bucket. A later page may use a recent survey.
func (s *Service) survey(ctx context.Context, later bool) ([]adopt.Home, error) {
	s.mu.Lock()
	found, age := s.found, time.Since(s.surveyed)
	s.mu.Unlock()
	if later && age < surveyAge {
		return found, nil
	}
	found, err := adopt.Survey(ctx, s.cfg.Bucket)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.found, s.surveyed = found, time.Now()
	s.mu.Unlock()
	return found, nil
}

// described converts a step to the API's form.
func described(s Step) api.RestoreStep {
	out := api.RestoreStep{
		ID: string(s.ID), Name: s.Name(), Owner: s.Owner(), Action: string(s.Action),
		Reason: s.Reason.Text(), ReasonCode: string(s.Reason),
		New: s.New, Undelete: s.Undelete, Running: s.Runs, Lost: s.Lost, SetAside: s.SetAside,
	}
	if s.Archive != nil {
		out.ArchiveKey, out.ArchivedAt = s.Archive.Key, &s.Archive.CreatedAt
	}
	return out
}
