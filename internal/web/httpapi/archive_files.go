package httpapi

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/gateway/inbound"
	"codehub/internal/storage/store"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Limits of a page of a folder: its entries, and the bytes of their names. Each page costs a read of the
// whole index, so pages are larger than those of other lists.
const (
	maxArchiveFiles = 10_000
	maxArchiveNames = 4 << 20
)

// ofArchive calls do with the files of the requested archive or backup and the path of one of them.
func (s *server) ofArchive(r *http.Request, id auth.Identity, do func(ctx context.Context, x archive.Files, name string) error) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	a, err := s.archiveOf(r, id, ws)
	if err != nil {
		return err
	}
	size := a.Size
	if !workspace.IsBackup(a.Key) {
		size = 0 // the index of an archive is read piece by piece
	}
	ctx, end, err := s.readBackup(r, id, ws.ID, size)
	if err != nil {
		return err
	}
	defer end()
	asked, cancel := context.WithTimeout(ctx, s.cfg.ReadWithin)
	x, err := s.cfg.Archives.Files(asked, a.Key, a.Size)
	cancel()
	name := archive.CleanName(r.URL.Query().Get("path"))
	if err == nil {
		err = do(ctx, x, name)
	}
	if r.PathValue("backup") != "" {
		return backupError(ctx, err)
	}
	switch {
	case err == nil, errors.Is(err, errStarted):
		return err
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrNotFound): // also if a cause is one of those below
		return archiveError(ctx, err)
	case errors.Is(err, archive.ErrNoIndex):
		return &workspace.Error{Code: workspace.CodeNotSupported, Message: "This archive has no list of its files. Download the whole archive.", Err: err}
	case errors.Is(err, archive.ErrCorrupted):
		return &workspace.Error{Code: workspace.CodeNotSupported, Message: "The list of files in this archive is damaged. Download the whole archive.", Err: err}
	case errors.Is(err, archive.ErrCursor):
		return workspace.Errorf(workspace.CodeInvalid, "Invalid cursor.")
	case errors.Is(err, fs.ErrNotExist):
		return workspace.Errorf(workspace.CodeNotFound, "The archive has no such file.")
	case errors.Is(err, fs.ErrInvalid):
		return workspace.Errorf(workspace.CodeInvalid, "The path is not that of a file.")
	}
	return archiveError(ctx, err)
}

// listArchiveFiles lists a folder of an archive, or one file.
func (s *server) listArchiveFiles(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	out := api.ArchiveFiles{Files: []api.ArchiveFile{}}
	err := s.ofArchive(r, id, func(ctx context.Context, x archive.Files, name string) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.ReadWithin)
		defer cancel()
		q := r.URL.Query()
		page, _ := parsePage(q, maxArchiveFiles)
		if q.Get("limit") == "" {
			page.Limit = maxArchiveFiles
		}
		list, next, err := x.List(ctx, name, page.Cursor, page.Limit, maxArchiveNames)
		for _, e := range list {
			out.Files = append(out.Files, archiveFile(e))
		}
		out.NextCursor = next
		return err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

func archiveFile(e archive.Entry) api.ArchiveFile {
	f := api.ArchiveFile{
		Path: e.Name, Kind: "file", Mode: strconv.FormatUint(uint64(e.Mode.Perm()), 8), UID: e.UID, GID: e.GID, Size: e.Size,
		ModifiedAt: e.ModTime.UTC(), Link: e.Link, SameAs: e.SameAs,
	}
	if y := f.ModifiedAt.Year(); y < 0 || y > 9999 { // which JSON cannot have
		f.ModifiedAt = time.Time{}
	}
	switch {
	case e.Mode.IsDir():
		f.Kind = "folder"
	case e.Link != "":
		f.Kind = "link"
	}
	return f
}

// timedReader lets the timer run during each read.
type timedReader struct {
	io.Reader
	timer  *time.Timer
	within time.Duration
}

func (t timedReader) Read(p []byte) (int, error) {
	t.timer.Reset(t.within)
	defer t.timer.Stop()
	return t.Reader.Read(p)
}

// downloadArchiveFile sends one file of an archive.
func (s *server) downloadArchiveFile(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	defer inbound.Stream(w, r)()
	return s.ofArchive(r, id, func(ctx context.Context, x archive.Files, name string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stalled := time.AfterFunc(s.cfg.ReadWithin, cancel)
		defer stalled.Stop()
		content, e, err := x.Open(ctx, name)
		if err != nil {
			return err
		}
		defer content.Close()
		out := &lateAnswer{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteWithin, status: http.StatusOK}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(e.Size, 10))
		w.Header().Set("Content-Disposition", attachment(strings.ToValidUTF8(path.Base(name), "\uFFFD")))
		w.Header().Set("X-Accel-Buffering", "no")
		if r.Method != http.MethodHead {
			_, err = io.Copy(out, timedReader{content, stalled, s.cfg.ReadWithin})
		}
		switch {
		case err == nil:
			out.begin() // HEAD, and an empty file
			return nil
		case out.begun:
			return errors.Join(errStarted, err)
		}
		undescribe(w.Header(), http.StatusInternalServerError)
		return err
	})
}
