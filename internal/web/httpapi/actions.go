package httpapi

import (
	"context"
	"net/http"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// lists handles a request for a page of a list.
func lists[T any](do func(context.Context, workspace.Caller, postgres.Page) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		page, err := parsePage(r.URL.Query())
		if err != nil {
			return err
		}
		out, err := do(r.Context(), id.Caller, page)
		return reply(w, http.StatusOK, out, err)
	}
}

// ofPath handles a request that needs nothing but what the path names.
func ofPath[T any](param string, do func(context.Context, workspace.Caller, string) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		out, err := do(r.Context(), id.Caller, r.PathValue(param))
		return reply(w, http.StatusOK, out, err)
	}
}

// creates handles a request that creates what its body describes.
func creates[In, T any](s *server, do func(context.Context, workspace.Caller, In) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		var in In
		if err := s.decode(w, r, &in); err != nil {
			return err
		}
		out, err := do(r.Context(), id.Caller, in)
		return reply(w, http.StatusCreated, out, err)
	}
}

// changes handles a request that changes what the path names as its body describes.
func changes[In, T any](s *server, do func(context.Context, workspace.Caller, string, In) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		var in In
		if err := s.decode(w, r, &in); err != nil {
			return err
		}
		out, err := do(r.Context(), id.Caller, r.PathValue("id"), in)
		return reply(w, http.StatusOK, out, err)
	}
}

// deletes handles a request that ends what the path names.
func deletes(do func(context.Context, workspace.Caller, string) error) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		if err := do(r.Context(), id.Caller, r.PathValue("id")); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
}

func reply(w http.ResponseWriter, status int, out any, err error) error {
	if err != nil {
		return err
	}
	return writeJSON(w, status, out)
}

// intent handles a request by calling a method of the store with the workspace of the path.
func (s *server) intent(status int, do func(context.Context, workspace.Caller, workspace.ID) (workspace.Workspace, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		wsID, err := pathID(r)
		if err != nil {
			return err
		}
		ws, err := do(r.Context(), id.Caller, wsID)
		if err != nil {
			return err
		}
		return s.answerTo(w, id, status, ws)
	}
}

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

func (s *server) recoverWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	var in api.Recover
	if err := s.decodeOptional(w, r, &in); err != nil {
		return err
	}
	action, err := recoverAction(in)
	if err != nil {
		return err
	}
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	switch action {
	case workspace.RecoverEmpty:
		if err := confirmLoss(ws, in.Confirm, "Starting empty"); err != nil {
			return err
		}
	case workspace.RecoverArchive:
		if err := confirmLoss(ws, in.Confirm, "Continuing with an earlier archive"); err != nil {
			return err
		}
		ws, err = s.cfg.Store.RequestRecoverArchive(r.Context(), id.Caller, ws.ID, in.ArchiveOpID)
		if err != nil {
			return err
		}
		return s.answer(w, http.StatusAccepted, ws)
	}
	if ws, err = s.cfg.Store.RequestRecover(r.Context(), id.Caller, ws.ID, action); err != nil {
		return err
	}
	return s.answer(w, http.StatusAccepted, ws)
}

// recoverAction is the requested way of recovery.
func recoverAction(in api.Recover) (string, error) {
	action := in.Action
	if in.ArchiveOpID != "" && action != api.RecoverArchive {
		return "", fieldError("archive_op_id", "is for the action archive alone.")
	}
	switch action {
	case "", api.RecoverAfresh:
		return workspace.RecoverAfresh, nil
	case api.RecoverEmpty:
		return workspace.RecoverEmpty, nil
	case api.RecoverSetAside:
		return workspace.RecoverSetAside, nil
	case api.RecoverArchive:
		if in.ArchiveOpID == "" || len(in.ArchiveOpID) > 128 {
			return "", fieldError("archive_op_id", "must name one of the workspace's archives.")
		}
		return workspace.RecoverArchive, nil
	}
	return "", fieldError("action", "must be afresh, empty, archive or set_aside.")
}

// confirmLoss requires that the caller confirms, by the workspace's name, that another
// home replaces the lost one. what describes the request. Without a loss it refuses the
// request: the home could be lost by the time at which the store reads it.
func confirmLoss(ws workspace.Workspace, confirm, what string) error {
	if _, err := lifecycle.RequestRecover(ws, time.Time{}, workspace.RecoverEmpty); err != nil {
		return err
	}
	if confirm == ws.Name {
		return nil
	}
	e := workspace.Errorf(workspace.CodeConfirmRequired, "%s discards the lost data. Repeat the workspace's name in confirm.", what)
	e.Details = map[string]any{"confirm": ws.Name}
	return e
}

// stopWorkspace stops a workspace (lifecycle.Stop); with force=true its container is removed now.
func (s *server) stopWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	force, err := boolParam(r.URL.Query(), "force")
	if err != nil {
		return err
	}
	stop := s.cfg.Store.Stop
	if force {
		stop = s.cfg.Store.RequestForceStop
	}
	ws, err := stop(r.Context(), id.Caller, wsID)
	if err != nil {
		return err
	}
	return s.answerTo(w, id, http.StatusAccepted, ws)
}
