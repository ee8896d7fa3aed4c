package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// Setup asks the agent of a running workspace how far its setup is. It wakes nothing and counts as
// no use. The caller has to check the access. The errors are those of Usage.
func (a *Attacher) Setup(ctx context.Context, id workspace.ID) (agent.SetupStatus, error) {
	c, err := a.agentOf(ctx, id)
	if err != nil {
		return agent.SetupStatus{}, err
	}
	s, err := c.SetupStatus(ctx)
	return s, refusal(err)
}

// ErrSetupRuns: the steps of the setup still run.
var ErrSetupRuns = errors.New("the setup is still running")

// RetrySetup runs the failed steps of a workspace's setup again. ErrSetupRuns; otherwise as Setup.
func (a *Attacher) RetrySetup(ctx context.Context, id workspace.ID) (agent.SetupStatus, error) {
	c, err := a.agentOf(ctx, id)
	if err != nil {
		return agent.SetupStatus{}, err
	}
	s, err := c.RetrySetup(ctx)
	return s, conflicts(err)
}

// RunStep runs a further step in a workspace. ErrSetupRuns if it runs; otherwise as Setup.
func (a *Attacher) RunStep(ctx context.Context, id workspace.ID, step agent.Step) (agent.SetupStatus, error) {
	c, err := a.agentOf(ctx, id)
	if err != nil {
		return agent.SetupStatus{}, err
	}
	s, err := c.RunStep(ctx, step)
	return s, conflicts(err)
}

// conflicts is refusal, and ErrSetupRuns for a conflict.
func conflicts(err error) error {
	var refused *agent.RefusedError
	if errors.As(err, &refused) && refused.Status == http.StatusConflict {
		return ErrSetupRuns
	}
	return refusal(err)
}

func (a *Attacher) agentOf(ctx context.Context, id workspace.ID) (*agent.Client, error) {
	up, err := a.cfg.Runtime.Upstream(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("find the workspace's container: %w", err)
	}
	if up.Agent == "" {
		return nil, ErrNoAgent
	}
	return &agent.Client{Addr: up.Agent, Secret: up.Secret}, nil
}

// Descriptions reads the files by which the repositories of a running workspace describe their
// environment. ErrNoAgent also if the agent is too old; otherwise as Setup.
func (a *Attacher) Descriptions(ctx context.Context, id workspace.ID) (agent.Descriptions, error) {
	c, err := a.agentOf(ctx, id)
	if err != nil {
		return agent.Descriptions{}, err
	}
	d, err := c.Descriptions(ctx)
	var refused *agent.RefusedError
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return d, ErrNoAgent
	}
	return d, refusal(err)
}

// BuildContext streams a folder of a repository of a running workspace; see agent.Client.Context.
// ErrNoAgent also if the agent is too old. An agent.RefusedError, also of Read, has the reason.
func (a *Attacher) BuildContext(ctx context.Context, id workspace.ID, folder, path, dockerfile string) (io.ReadCloser, error) {
	c, err := a.agentOf(ctx, id)
	if err != nil {
		return nil, err
	}
	r, err := c.Context(ctx, folder, path, dockerfile)
	var refused *agent.RefusedError
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil, ErrNoAgent
	}
	return r, err
}
