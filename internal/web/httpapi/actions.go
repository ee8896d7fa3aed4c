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
		out, err := do(r.Context(), id.Caller, pageOf(r))
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

// takes handles a request with a body.
func takes[In any](s *server, do func(http.ResponseWriter, *http.Request, auth.Identity, In) error) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		var in In
		if err := s.decode(w, r, &in); err != nil {
			return err
		}
		return do(w, r, id, in)
	}
}

// mayTake is takes for calls whose body may be missing.
func mayTake[In any](s *server, do func(http.ResponseWriter, *http.Request, auth.Identity, In) error) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		var in In
		if err := s.decodeOptional(w, r, &in); err != nil {
			return err
		}
		return do(w, r, id, in)
	}
}

// creates handles a request that creates what its body describes.
func creates[In, T any](s *server, do func(context.Context, workspace.Caller, In) (T, error)) handler {
	return takes(s, func(w http.ResponseWriter, r *http.Request, id auth.Identity, in In) error {
		out, err := do(r.Context(), id.Caller, in)
		return reply(w, http.StatusCreated, out, err)
	})
}

// changes handles a request that changes what the path names as its body describes.
func changes[In, T any](s *server, do func(context.Context, workspace.Caller, string, In) (T, error)) handler {
	return takes(s, func(w http.ResponseWriter, r *http.Request, id auth.Identity, in In) error {
		out, err := do(r.Context(), id.Caller, r.PathValue("id"), in)
		return reply(w, http.StatusOK, out, err)
	})
}

// deletes handles a request that ends what the path names.
func deletes(do func(context.Context, workspace.Caller, string) error) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		return replyNothing(w, do(r.Context(), id.Caller, r.PathValue("id")))
	}
}

func reply(w http.ResponseWriter, status int, out any, err error) error {
	if err != nil {
		return err
	}
	return writeJSON(w, status, out)
}

func replyNothing(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// each returns what of makes of each element; an empty list is not nil, which would be null in JSON.
func each[From, To any](list []From, of func(From) To) []To {
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = of(v)
	}
	return out
}

// intent handles a request by calling a method of the store with the workspace of the path.
func (s *server) intent(status int, do func(context.Context, workspace.Caller, workspace.ID) (workspace.Workspace, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
		ws, err := do(r.Context(), id.Caller, pathID(r))
		return s.answerTo(w, id, status, ws, err)
	}
}

func (s *server) deleteWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	queue, err := boolParam(r.URL.Query(), "queue")
	if err != nil {
		return err
	}
	ws, err := s.cfg.Store.DeleteWorkspace(r.Context(), id.Caller, pathID(r), queue)
	return s.answer(w, http.StatusAccepted, ws, err)
}

func (s *server) recoverWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.Recover) error {
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
		ws, err := s.cfg.Store.RequestRecoverArchive(r.Context(), id.Caller, ws.ID, in.ArchiveOpID)
		return s.answer(w, http.StatusAccepted, ws, err)
	}
	ws, err = s.cfg.Store.RequestRecover(r.Context(), id.Caller, ws.ID, action)
	return s.answer(w, http.StatusAccepted, ws, err)
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
	force, err := boolParam(r.URL.Query(), "force")
	if err != nil {
		return err
	}
	stop := s.cfg.Store.Stop
	if force {
		stop = s.cfg.Store.RequestForceStop
	}
	ws, err := stop(r.Context(), id.Caller, pathID(r))
	return s.answerTo(w, id, http.StatusAccepted, ws, err)
}
