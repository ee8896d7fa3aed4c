package httpapi

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/storage/store"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Limits of an answer of backupChanges: its files, and the bytes of their paths.
const (
	maxChangedFiles = 1000
	maxChangedNames = 1 << 20
)

func (s *server) listBackups(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, next, err := s.cfg.Store.HomeBackups(r.Context(), id.Caller, pathID(r), pageOf(r))
	return s.replyBackups(w, r, list, next, err)
}

func (s *server) listAnyBackups(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, next, err := s.cfg.Store.AnyHomeBackups(r.Context(), id.Caller, pathID(r), pageOf(r))
	return s.replyBackups(w, r, list, next, err)
}

// replyBackups answers with backups of a workspace that the caller may list, or with err.
func (s *server) replyBackups(w http.ResponseWriter, r *http.Request, list []workspace.Backup, next string, err error) error {
	if err != nil {
		return err
	}
	space, err := s.cfg.Store.BackupSpace(r.Context(), workspace.System, pathID(r))
	return reply(w, http.StatusOK, service.Backups(list, space, next), err)
}

func (s *server) requestBackup(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.NewBackup) error {
	b, err := s.cfg.Store.RequestHomeBackup(r.Context(), id.Caller, pathID(r), in.Note)
	if err == nil {
		w.Header().Set("Location", Prefix+"/workspaces/"+string(b.WorkspaceID)+"/backups/"+b.ID)
	}
	return reply(w, http.StatusAccepted, service.Backup(b), err)
}

func (s *server) requestAnyBackup(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.NewBackup) error {
	b, err := s.cfg.Store.RequestAnyHomeBackup(r.Context(), id.Caller, pathID(r), in.Note)
	return reply(w, http.StatusAccepted, service.Backup(b), err)
}

func (s *server) getBackup(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	b, err := s.cfg.Store.HomeBackup(r.Context(), id.Caller, pathID(r), r.PathValue("backup"))
	return reply(w, http.StatusOK, service.Backup(b), err)
}

// doneBackup reads a backup that is complete. CodeNotFound.
func (s *server) doneBackup(ctx context.Context, id auth.Identity, ws workspace.ID, backup string) (workspace.Backup, error) {
	b, err := s.cfg.Store.HomeBackup(ctx, id.Caller, ws, backup)
	if err == nil && b.State != workspace.BackupDone {
		err = workspace.Errorf(workspace.CodeNotFound, "The backup is not complete.")
	}
	return b, err
}

// backupChanges lists the files that differ between a backup and an earlier one: the one before,
// unless the request names another.
func (s *server) backupChanges(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	b, err := s.doneBackup(r.Context(), id, ws.ID, r.PathValue("backup"))
	if err != nil {
		return err
	}
	var since workspace.Backup
	if name := r.URL.Query().Get("since"); name != "" {
		since, err = s.doneBackup(r.Context(), id, ws.ID, name)
	} else if since, err = s.cfg.Store.HomeBackupBefore(r.Context(), id.Caller, b); workspace.CodeOf(err) == workspace.CodeNotFound {
		since, err = workspace.Backup{}, nil
	}
	if err != nil {
		return err
	}
	ctx, end, err := s.readBackup(r, id, ws.ID, b.Size+since.Size)
	if err != nil {
		return err
	}
	defer end()
	out, err := s.differences(ctx, b, since)
	if err != nil {
		return backupError(ctx, err)
	}
	return writeJSON(w, http.StatusOK, out)
}

// differences compares a backup with another one; one without a key: with nothing.
func (s *server) differences(ctx context.Context, b, since workspace.Backup) (api.BackupChanges, error) {
	out := api.BackupChanges{Backup: b.ID, Since: since.ID, Files: []api.ChangedFile{}}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ReadWithin)
	defer cancel()
	var former *archive.Manifest
	present, _, err := s.cfg.Archives.Generation(ctx, b.Key)
	if err == nil && since.Key != "" {
		former, _, err = s.cfg.Archives.Generation(ctx, since.Key)
	}
	if err != nil {
		return out, err
	}
	var total archive.Changes
	names := 0
	for d, err := range present.Differences(former) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return out, err
		}
		total.Add(d)
		if names += len(d.Entry.Name); len(out.Files) >= maxChangedFiles || names > maxChangedNames {
			out.More = true
			continue
		}
		out.Files = append(out.Files, api.ChangedFile{
			Path: d.Entry.Name, Change: map[archive.DifferenceKind]string{archive.Added: api.FileAdded, archive.Modified: api.FileModified, archive.Removed: api.FileRemoved}[d.Kind],
			Kind: archiveFile(d.Entry).Kind, Size: d.Entry.Size,
		})
	}
	slices.SortFunc(out.Files, func(a, b api.ChangedFile) int { return strings.Compare(a.Path, b.Path) })
	out.Added, out.Modified, out.Removed, out.Bytes = total.Added, total.Changed, total.Removed, total.Bytes
	return out, nil
}

// fileVersions lists the versions of a file in the backups of a home.
func (s *server) fileVersions(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	name := archive.CleanName(r.URL.Query().Get("path"))
	page, err := service.VersionPageOf(r.Context(), s.cfg.Store, id.Caller, ws.ID, r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	ctx, end, err := s.readBackup(r, id, ws.ID, page.Memory())
	if err != nil {
		return err
	}
	defer end()
	asked, cancel := context.WithTimeout(ctx, s.cfg.ReadWithin)
	defer cancel()
	out, err := page.Read(asked, s.cfg.Archives.Generation, name)
	if err != nil {
		return backupError(ctx, err)
	}
	return writeJSON(w, http.StatusOK, out)
}

// backupError describes a failure to read a backup; ctx is the request's.
func backupError(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, errStarted):
		return err
	case ctx.Err() != nil, errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded): // also if a cause is one of those below
		return archiveError(ctx, err)
	case errors.Is(err, store.ErrNotFound):
		return &workspace.Error{Code: workspace.CodeArchiveNotFound, Message: "The backup is missing from the archive storage.", Err: err}
	case errors.Is(err, archive.ErrCorrupted):
		return &workspace.Error{Code: workspace.CodeNotSupported, Message: "The backup is damaged. Use another one.", Err: err}
	case errors.Is(err, archive.ErrCursor):
		return workspace.Errorf(workspace.CodeInvalid, "Invalid cursor.")
	case errors.Is(err, fs.ErrNotExist):
		return workspace.Errorf(workspace.CodeNotFound, "The backup has no such file.")
	case errors.Is(err, fs.ErrInvalid):
		return workspace.Errorf(workspace.CodeInvalid, "The path is not that of a file.")
	}
	return archiveError(ctx, err)
}

func (s *server) restoreBackup(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.RestoreBackup) error {
	if in.Backup == "" {
		return fieldError("backup", "is required.")
	}
	ws, err := s.cfg.Store.RequestRestore(r.Context(), id.Caller, pathID(r), in.Backup, in.Start)
	return s.answer(w, http.StatusAccepted, ws, err)
}

func (s *server) restoreAnyBackup(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.RestoreBackup) error {
	if in.Backup == "" {
		return fieldError("backup", "is required.")
	}
	return s.administered(w, r, id, postgres.Administration{Do: postgres.DoRestore, Backup: in.Backup, Start: in.Start})
}

// fork creates workspaces from a backup or an archive, which a token that is limited to one workspace may not.
func (s *server) fork(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.Fork) error {
	if err := id.Caller.Permits(workspace.ScopeWorkspaces, ""); err != nil {
		return err
	}
	if in.Name != "" {
		var err error
		if in.Name, err = checkName(in.Name); err != nil {
			return err
		}
	}
	list, err := s.cfg.Store.Fork(r.Context(), id.Caller, pathID(r), in)
	return reply(w, http.StatusCreated, api.WorkspaceList{Workspaces: each(list, s.view)}, err)
}
