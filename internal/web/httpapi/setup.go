package httpapi

import (
	"context"
	"errors"
	"net/http"

	"codehub/internal/running/attach"
	"codehub/internal/running/service"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// setup asks a running workspace how far its setup is, or has it try again. It neither counts as
// activity nor starts a workspace.
func (s *server) setup(ask func(context.Context, workspace.ID) (agent.SetupStatus, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		ws, err := s.find(r, id)
		if err != nil {
			return err
		}
		if ws.Phase != workspace.PhaseRunning {
			return workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
		}
		ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
		defer cancel()
		status, err := ask(ctx, ws.ID)
		if err != nil {
			return ofAgent(ctx, err)
		}
		return writeJSON(w, http.StatusOK, service.Setup(status))
	}
}

// ofAgent is an error of a request to a workspace's agent as the API reports it.
func ofAgent(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, attach.ErrNoAgent):
		return workspace.Errorf(codeNoAgent, "The workspace was started by another version of codehub. Restart it.")
	case errors.Is(err, attach.ErrSetupRuns):
		return workspace.Errorf(workspace.CodeOperationInProgress, "The setup is still running.")
	case errors.Is(err, runtime.ErrNotFound):
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	case errors.Is(err, agent.ErrUnreachable), errors.Is(err, runtime.ErrUnreachable), ctx.Err() != nil:
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace is not responding. Try again later.", Err: err}
	}
	return err
}
