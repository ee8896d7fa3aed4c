package httpapi

import (
	"errors"
	"net/http"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// These calls are for `codehub import` of another installation. The store allows them to
// administrators with an API token, while moves are allowed, and records what is read
// (docs/adr/0022-moves-are-allowed-on-the-machine.md).

func (s *server) moveSource(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	source, err := s.cfg.Store.MoveSource(r.Context(), id.Caller)
	return reply(w, http.StatusOK, source, err)
}

func (s *server) listToMove(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, next, err := s.cfg.Store.WorkspacesToMove(r.Context(), id.Caller, pageOf(r))
	return reply(w, http.StatusOK, api.MoveWorkspaceList{Workspaces: each(list, service.MoveWorkspace), NextCursor: next}, err)
}

// userToMove answers with the identities of a user. Passwords and keys do not move.
func (s *server) userToMove(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Store.UserToMove(r.Context(), id.Caller, r.PathValue("id"))
	return reply(w, http.StatusOK, api.MoveUser{ID: r.PathValue("id"), Identities: each(list, func(at postgres.Identity) api.MoveIdentity {
		return api.MoveIdentity{Issuer: at.Issuer, Subject: at.Subject, Username: at.Username}
	})}, err)
}

func (s *server) getToMove(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Store.WorkspaceToMove(r.Context(), id.Caller, workspace.ID(r.PathValue("id")))
	return reply(w, http.StatusOK, service.MoveWorkspace(ws), err)
}

func (s *server) archiveToMove(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Store.ArchiveToMove(r.Context(), id.Caller, workspace.ID(r.PathValue("id")))
	return reply(w, http.StatusAccepted, service.MoveWorkspace(ws), err)
}

// readToMove answers with everything that a move takes of a workspace but its files.
func (s *server) readToMove(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Store.ReadToMove(r.Context(), id.Caller, workspace.ID(r.PathValue("id")))
	if err != nil {
		return err
	}
	meta, err := s.cfg.Archives.Meta(r.Context(), ws.ArchiveKey)
	if errors.Is(err, archive.ErrCorrupted) {
		return &workspace.Error{Code: workspace.CodeArchiveNotFound, Message: "The archive in the archive storage is damaged.", Err: err}
	}
	if err != nil {
		return archiveError(r.Context(), err)
	}
	out := service.MoveRecord(ws)
	a := &out.Archive
	a.Format, a.CodehubVersion = meta.Format, meta.CodehubVersion
	a.Entries, a.Bytes, a.Skipped = meta.Entries, meta.Bytes, meta.Skipped
	return writeJSON(w, http.StatusOK, out)
}

func (s *server) fetchToMove(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Store.FetchToMove(r.Context(), id.Caller, workspace.ID(r.PathValue("id")), r.URL.Query().Get("version"))
	if err != nil {
		return err
	}
	return s.sendArchive(w, r, id, ws.Name, workspace.Archive{Key: ws.ArchiveKey, Digest: ws.ArchiveDigest, Size: ws.ArchiveSize}, s.administers(id.Caller, ws.ID))
}

func (s *server) deleteMoved(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Store.DeleteMoved(r.Context(), id.Caller, workspace.ID(r.PathValue("id")), r.URL.Query().Get("version"))
	return reply(w, http.StatusAccepted, service.MoveWorkspace(ws), err)
}
