package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/auth"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func (s *server) deleteWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	queue, err := boolParam(r.URL.Query(), "queue")
	if err != nil {
		return err
	}
	ws, err := s.cfg.Store.DeleteWorkspace(r.Context(), id.Caller, wsID, queue)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusAccepted, ws)
}

func (s *server) undeleteWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	ws, err := s.cfg.Store.UndeleteWorkspace(r.Context(), id.Caller, wsID)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, ws)
}

func (s *server) recoverWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	var in api.Recover
	if err := s.decodeOptional(w, r, &in); err != nil {
		return err
	}
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	action := workspace.RecoverAfresh
	if in.StartEmpty {
		if err := mayStartEmpty(ws, in.Confirm); err != nil {
			return err
		}
		action = workspace.RecoverEmpty
	}
	if ws, err = s.cfg.Store.RequestRecover(r.Context(), id.Caller, ws.ID, action); err != nil {
		return err
	}
	return s.answer(w, http.StatusAccepted, ws)
}

// mayStartEmpty guards what is left of somebody's data: an empty start is
// only for a home that is lost, and only in words (design §2).
func mayStartEmpty(ws workspace.Workspace, confirm string) error {
	if ws.Phase != workspace.PhaseError {
		return workspace.Errorf(workspace.CodeNotInError, "This workspace is not in an error.")
	}
	lost := ws.ErrorReason
	if health := ws.Conditions.Get(workspace.Healthy); lost == "" && !health.True() {
		lost = workspace.ErrorReason(health.Reason) // a recovery has just cleared the error, and the loss is still seen
	}
	if lost != workspace.ErrDataLost && lost != workspace.ErrArchiveCorrupted {
		return workspace.Errorf(workspace.CodeNotSupported, "The data of this workspace is not lost, so it cannot be started empty. Recover it instead.")
	}
	if confirm != ws.Name {
		e := workspace.Errorf(workspace.CodeConfirmRequired, "Starting empty gives up what was lost. Repeat the workspace's name in confirm.")
		e.Details = map[string]any{"confirm": ws.Name}
		return e
	}
	return nil
}

func (s *server) cancelWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	ws, err := s.cfg.Store.RequestCancel(r.Context(), id.Caller, wsID)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusAccepted, ws)
}

// stopWorkspace wants STANDBY, as soon as the operation under way is over;
// with force=true, and in ERROR, the container is removed now.
func (s *server) stopWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	force, err := boolParam(r.URL.Query(), "force")
	if err != nil {
		return err
	}
	var ws workspace.Workspace
	if !force {
		standby := workspace.DesiredStandby
		ws, err = s.cfg.Store.PatchWorkspace(r.Context(), id.Caller, wsID, postgres.Patch{Desired: &standby, Queue: true})
		force = workspace.CodeOf(err) == workspace.CodeRecoveryRequired
	}
	if force {
		ws, err = s.cfg.Store.RequestForceStop(r.Context(), id.Caller, wsID)
	}
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusAccepted, ws)
}
