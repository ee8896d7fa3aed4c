// Package dotfiles gives workspaces the dotfiles of their owners: once per home at a start, and
// again on request.
package dotfiles

import (
	"context"

	"codehub/api"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// onceID names the file in a home that has got its dotfiles.
const onceID = "dotfiles"

// Store reads dotfiles (*postgres.DB).
type Store interface {
	LaunchDotfiles(ctx context.Context, id workspace.ID) (api.Dotfiles, error)
}

// Agents runs steps in running workspaces (*attach.Attacher).
type Agents interface {
	RunStep(ctx context.Context, id workspace.ID, step agent.Step) (agent.SetupStatus, error)
}

// Service applies dotfiles.
type Service struct {
	Store  Store
	Agents Agents
}

func stepOf(d api.Dotfiles) agent.Step {
	return agent.Step{Name: d.URL, Once: onceID, Dotfiles: &workspace.Repository{URL: d.URL, Branch: d.Branch}}
}

// Deliver adds the dotfiles of the owner to the setup of a workspace. Its home knows whether it has
// got some.
func (s *Service) Deliver(ctx context.Context, row workspace.Workspace, setup *agent.Setup) error {
	d, err := s.Store.LaunchDotfiles(ctx, row.ID)
	if err == nil && d.URL != "" {
		setup.Steps = append(setup.Steps, stepOf(d))
	}
	return err
}

// Apply applies the owner's dotfiles to a running workspace, also if it has got some. CodeNotFound
// if the owner has none; otherwise the errors are those of attach.RunStep.
func (s *Service) Apply(ctx context.Context, id workspace.ID) (agent.SetupStatus, error) {
	d, err := s.Store.LaunchDotfiles(ctx, id)
	if err != nil {
		return agent.SetupStatus{}, err
	}
	if d.URL == "" {
		return agent.SetupStatus{}, workspace.Errorf(workspace.CodeNotFound, "You have no dotfiles. Set their repository first.")
	}
	step := stepOf(d)
	step.Again = true
	return s.Agents.RunStep(ctx, id, step)
}
