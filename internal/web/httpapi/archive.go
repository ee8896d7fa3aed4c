package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/gateway/inbound"
	"codehub/internal/running/service"
	"codehub/internal/storage/store"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Archives is the part of the bucket that downloads need. Errors wrap
// store.ErrNotFound or store.ErrUnavailable.
type Archives interface {
	// Open reads an object from an offset to its end.
	Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	Stat(ctx context.Context, key string) (store.Object, error)
	// Meta reads the .meta of an archive. It may also be archive.ErrCorrupted.
	Meta(ctx context.Context, key string) (*archive.Meta, error)
	// Files reads the index of an archive of this size, or the manifest of a backup. It may also be
	// archive.ErrNoIndex or archive.ErrCorrupted.
	Files(ctx context.Context, key string, size int64) (archive.Files, error)
	// Generation reads the manifest of a backup. It may also be archive.ErrCorrupted.
	Generation(ctx context.Context, key string) (*archive.Manifest, archive.GetRange, error)
	// ReserveManifests reserves memory for manifests that a request of the user reads.
	ReserveManifests(user string, size int64) (release func(), ok bool)
}

func (s *server) listArchives(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	list, next, err := s.cfg.Store.Archives(r.Context(), id.Caller, ws.ID, pageOf(r))
	if err != nil {
		return err
	}
	out := service.Archives(ws, list)
	out.NextCursor = next
	return writeJSON(w, http.StatusOK, out)
}

// maxDownloads bounds how many archives one user downloads at once: each holds
// a connection to the bucket.
const maxDownloads = 16

// downloadArchive sends an archive to its owner, the current one unless the request
// names another. It serves ranges (RFC 9110, Range with If-Range): an archive never
// changes, and its digest is its entity tag.
func (s *server) downloadArchive(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	a, err := s.archiveOf(r, id, ws)
	if err != nil {
		return err
	}
	return s.sendArchive(w, r, id, ws.Name, a, s.owns(id.Caller, ws.ID))
}

// sendArchive sends an archive of the workspace of this name, as long as allowed says that the
// caller may have it.
func (s *server) sendArchive(w http.ResponseWriter, r *http.Request, id auth.Identity, name string, a workspace.Archive, allowed func(context.Context) error) error {
	ctx, end, err := s.download(r, id, allowed)
	if err != nil {
		return err
	}
	defer end()
	defer inbound.Stream(w, r)()
	asked, cancel := context.WithTimeout(ctx, s.cfg.ReadWithin)
	found, err := s.cfg.Archives.Stat(asked, a.Key)
	cancel()
	if err != nil {
		return archiveError(ctx, err)
	}
	content := newObject(ctx, s.cfg.Archives, a.Key, found.Size, s.cfg.ReadWithin)
	defer content.Close()
	describeArchive(w.Header(), name, a, found.Size)
	return s.sendContent(w, r, content)
}

// download begins a read of an archive, and returns the context in which the caller may do it.
func (s *server) download(r *http.Request, id auth.Identity, allowed func(context.Context) error) (context.Context, func(), error) {
	if !s.downloading.add(id.Caller.UserID, maxDownloads) {
		return nil, nil, workspace.Errorf(codeTooManyStreams, "Too many archives are being downloaded for this account: at most %d.", maxDownloads)
	}
	ctx, stop := s.cfg.Auth.Watch(r.Context(), id.Caller.Session)
	ctx, end := s.whileAllowed(ctx, allowed)
	return ctx, func() { end(); stop(); s.downloading.remove(id.Caller.UserID) }, nil
}

// readBackup is download for a request that reads manifests of this size in total.
func (s *server) readBackup(r *http.Request, id auth.Identity, ws workspace.ID, size int64) (context.Context, func(), error) {
	release, ok := s.cfg.Archives.ReserveManifests(id.Caller.UserID, size)
	if !ok {
		return nil, nil, workspace.Errorf(codeTooManyStreams, "Too many backups are being read. Try again in a moment.")
	}
	ctx, end, err := s.download(r, id, s.owns(id.Caller, ws))
	if err != nil {
		release()
		return nil, nil, err
	}
	return ctx, func() { end(); release() }, nil
}

// archiveOf returns the requested archive: a backup if the path names one, an earlier generation by its
// archive_op_id, otherwise the one that a restore would unpack.
func (s *server) archiveOf(r *http.Request, id auth.Identity, ws workspace.Workspace) (workspace.Archive, error) {
	if r.PathValue("backup") != "" {
		b, err := s.doneBackup(r.Context(), id, ws.ID, r.PathValue("backup"))
		return b.Archive(), err
	}
	opID := r.URL.Query().Get("archive_op_id")
	switch {
	case opID == "" && ws.ArchiveKey == "":
		return workspace.Archive{}, workspace.Errorf(workspace.CodeArchiveNotFound, "This workspace has no archive.")
	case opID == "" && workspace.SharedArchive(ws.ID, ws.ArchiveKey):
		return workspace.Archive{}, workspace.Errorf(workspace.CodeArchiveNotFound, "The home of this workspace is in a backup or in the archive of another workspace. Download it there, or start this workspace.")
	case opID == "":
		return workspace.Archive{Key: ws.ArchiveKey, Digest: ws.ArchiveDigest, Size: ws.ArchiveSize}, nil
	}
	return s.cfg.Store.Archive(r.Context(), id.Caller, ws.ID, opID)
}

// describeArchive sets the headers of a download. An object of another size than was
// recorded is sent without its digest, so that its owner can save what is left.
func describeArchive(h http.Header, name string, a workspace.Archive, size int64) {
	h.Set("Content-Type", "application/zstd")
	h.Set("Content-Disposition", attachment(api.ArchiveFileName(name)))
	h.Set("X-Accel-Buffering", "no")
	digest, err := hex.DecodeString(a.Digest)
	if err != nil || len(digest) != 32 || a.Size != size {
		return
	}
	h.Set("ETag", `"`+strings.ToLower(a.Digest)+`"`)
	h.Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(digest)+":")
}

// sendContent answers a GET or HEAD with content. http.ServeContent evaluates
// preconditions and ranges; errors have the API's form. A request for several ranges
// gets the whole, because each range would be a request to the bucket.
func (s *server) sendContent(w http.ResponseWriter, r *http.Request, content *object) error {
	out := &lateAnswer{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteWithin}
	if strings.Contains(r.Header.Get("Range"), ",") {
		r = r.Clone(r.Context())
		r.Header.Del("Range")
	}
	http.ServeContent(out, r, "", time.Time{}, content)
	if out.begun {
		if content.err != nil {
			return errors.Join(errStarted, content.err)
		}
		return nil
	}
	var err error
	switch {
	case content.err != nil:
		err = archiveError(content.ctx, content.err)
	case out.status == http.StatusRequestedRangeNotSatisfiable:
		err = workspace.Errorf(codeRange, "The range is not in the archive, which has %d bytes.", content.size)
	case out.status == http.StatusPreconditionFailed:
		err = workspace.Errorf(codePrecondition, "The archive is not the one that the request names.")
	default:
		out.begin() // HEAD, 304, and an empty archive
		return nil
	}
	undescribe(w.Header(), out.status)
	return err
}

// undescribe removes the headers of content that is not sent.
func undescribe(h http.Header, status int) {
	for _, name := range []string{"Accept-Ranges", "Content-Disposition", "Content-Length", "Etag", "Repr-Digest", "X-Accel-Buffering"} {
		h.Del(name)
	}
	if status != http.StatusRequestedRangeNotSatisfiable {
		h.Del("Content-Range")
	}
	headers(h)
}

// archiveError describes a failure to read an archive; ctx is the request's.
func archiveError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return &workspace.Error{Code: workspace.CodeUnauthenticated, Message: "The session has ended.", Err: ctx.Err()}
	case errors.Is(err, store.ErrNotFound):
		return &workspace.Error{Code: workspace.CodeArchiveNotFound, Message: "The archive is missing from the archive storage.", Err: err}
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The archive storage is not responding. Try again later.", Err: err}
	}
	return err
}

// lateAnswer delays the header until the first content, so that a failure before it
// can still be answered with an error.
type lateAnswer struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	within time.Duration // how long the reader may take for one piece
	status int           // of the delayed header
	begun  bool
}

func (a *lateAnswer) Header() http.Header { return a.w.Header() }

func (a *lateAnswer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *lateAnswer) begin() {
	if !a.begun {
		a.begun = true
		a.w.WriteHeader(a.status)
	}
}

func (a *lateAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.status >= http.StatusBadRequest {
		return len(b), nil // an error's text; the API has its own
	}
	a.begin()
	// A server without a network connection sets no deadline.
	_ = a.rc.SetWriteDeadline(time.Now().Add(a.within))
	n, err := a.w.Write(b)
	_ = a.rc.SetWriteDeadline(time.Time{}) // HTTP/2 resets a stream at its deadline, also while the bucket is being read
	return n, err
}
