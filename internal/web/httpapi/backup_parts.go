package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/gateway/inbound"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// partOf finds a file, link or folder of a backup.
func (s *server) partOf(ctx context.Context, b workspace.Backup, name string) (*archive.Part, archive.GetRange, error) {
	asked, cancel := context.WithTimeout(ctx, s.cfg.ReadWithin)
	defer cancel()
	m, get, err := s.cfg.Archives.Generation(asked, b.Key)
	if err != nil {
		return nil, nil, backupError(ctx, err)
	}
	part, err := m.Part(name)
	return part, get, backupError(ctx, err)
}

// stalling cancels a read of a backup that takes longer than within between two writes.
type stalling struct {
	io.Writer
	timer  *time.Timer
	within time.Duration
}

func stallingWriter(w io.Writer, within time.Duration, cancel context.CancelFunc) stalling {
	return stalling{w, time.AfterFunc(within, cancel), within}
}

// Write implements io.Writer.
func (w stalling) Write(p []byte) (int, error) {
	w.timer.Stop()
	defer w.timer.Reset(w.within)
	return w.Writer.Write(p)
}

// downloadBackupTar sends a file or folder of a backup as a tar.
func (s *server) downloadBackupTar(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	defer inbound.Stream(w, r)()
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	b, err := s.doneBackup(r.Context(), id, ws.ID, r.PathValue("backup"))
	if err != nil {
		return err
	}
	ctx, end, err := s.readBackup(r, id, ws.ID, b.Size)
	if err != nil {
		return err
	}
	defer end()
	name := archive.CleanName(r.URL.Query().Get("path"))
	part, get, err := s.partOf(ctx, b, name)
	if err != nil {
		return err
	}
	called := path.Base(name)
	if called == "." {
		called = ws.Name
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Content-Disposition", attachment(strings.ToValidUTF8(called, "\uFFFD")+".tar"))
	w.Header().Set("X-Accel-Buffering", "no")
	out := &lateAnswer{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteWithin, status: http.StatusOK}
	if r.Method == http.MethodHead {
		out.begin()
		return nil
	}
	read, cancel := context.WithCancel(ctx)
	defer cancel()
	to := stallingWriter(out, s.cfg.ReadWithin, cancel)
	defer to.timer.Stop()
	switch err = part.Tar(read, get, path.Base(name), to); {
	case err == nil:
		return nil
	case out.begun:
		return errors.Join(errTruncated, err)
	}
	undescribe(w.Header(), http.StatusInternalServerError)
	return backupError(ctx, err)
}

// putBack puts a file or folder of a backup into the running workspace.
func (s *server) putBack(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.PutBack) error {
	defer inbound.Stream(w, r)()
	name := archive.CleanName(in.Path)
	to := name
	if in.To != "" {
		to = archive.CleanName(in.To)
	}
	if name == "." || to == "." || !filepath.IsLocal(to) || strings.Contains(to, "\x00") {
		return workspace.Errorf(workspace.CodeInvalid, "Name a file or folder in the home. To get the whole home back, restore the backup.")
	}
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	if ws.Phase != workspace.PhaseRunning {
		return notRunningForPut()
	}
	b, err := s.doneBackup(r.Context(), id, ws.ID, r.PathValue("backup"))
	if err != nil {
		return err
	}
	ctx, end, err := s.readBackup(r, id, ws.ID, b.Size)
	if err != nil {
		return err
	}
	defer end()
	part, get, err := s.partOf(ctx, b, name)
	if err != nil {
		return err
	}
	attached, err := s.cfg.Attach.AttachRunning(ctx, id.Caller, ws.ID)
	if err != nil {
		return putError(ctx, to, err)
	}
	defer attached.Close()
	as := archive.PartName
	if part.Entry().Mode.IsDir() {
		as = "."
	}
	kept, err := attached.Agent.Unpack(attached.Context(), to, in.Replace, func(w io.Writer) error {
		if err := s.cfg.Store.RecordPutBack(ctx, id.Caller, ws.ID, r.PathValue("backup"), name, to, in.Replace); err != nil {
			return err
		}
		read, cancel := context.WithCancel(attached.Context())
		defer cancel()
		out := stallingWriter(w, s.cfg.ReadWithin, cancel)
		defer out.timer.Stop()
		return part.Tar(read, get, as, out)
	})
	if err != nil {
		if cause := context.Cause(attached.Context()); cause != nil {
			err = cause
		}
		return putError(ctx, to, err)
	}
	out := api.PutBackResult{Path: strings.ToValidUTF8(to, "\uFFFD")}
	if kept != "" {
		out.Kept = strings.ToValidUTF8(path.Join(path.Dir(to), kept), "\uFFFD")
	}
	return writeJSON(w, http.StatusOK, out)
}

func notRunningForPut() error {
	return workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running. Start it to put files of a backup back.")
}

// putError describes why a file was not put into a workspace; ctx is the request's.
func putError(ctx context.Context, to string, err error) error {
	var refused *agent.RefusedError
	var closed *attach.NotOpen
	switch {
	case errors.As(err, &closed):
		return notRunningForPut()
	case errors.Is(err, attach.ErrTooMany):
		return workspace.Errorf(codeTooManyStreams, "Too many terminals, commands and other connections to workspaces are open for this account.")
	case errors.Is(err, attach.ErrStopped):
		return workspace.Errorf(codeStopped, "The workspace has stopped.")
	case errors.Is(err, attach.ErrNoAgent), errors.Is(err, agent.ErrUnreachable):
		return ofAgent(ctx, err)
	case errors.Is(err, attach.ErrClosed):
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The connection to the workspace was lost.", Err: err}
	case !errors.As(err, &refused):
		return backupError(ctx, err)
	}
	switch refused.Status {
	case http.StatusNotFound: // the agent does not know the request
		return ofAgent(ctx, attach.ErrNoAgent)
	case http.StatusConflict:
		return workspace.Errorf(codeFileExists, "%s already exists in the workspace.", bounded(strings.ToValidUTF8(to, "\uFFFD")))
	case http.StatusInsufficientStorage:
		return workspace.Errorf(codeDiskFull, "The workspace has no space for this. Nothing was changed.")
	}
	return workspace.Errorf(workspace.CodeInvalid, "The file cannot be put there: %s.", bounded(refused.Message))
}
