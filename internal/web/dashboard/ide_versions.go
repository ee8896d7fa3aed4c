package dashboard

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/running/service"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/web/proxy"
	"codehub/internal/workspace"
)

// maxIDEText is the size of the largest version that the IDE shows.
const maxIDEText = 2 << 20

// ideVersions are versions of a file in the Timeline of an IDE.
type ideVersions struct {
	Versions []ideVersion `json:"versions"`
	Cursor   string       `json:"cursor,omitempty"`
}

type ideVersion struct {
	Backup  string    `json:"backup"`
	At      time.Time `json:"at"`
	Label   string    `json:"label"`
	Detail  string    `json:"detail"`
	Removed bool      `json:"removed,omitempty"` // there is no text
}

// ideText is the text of a version, or why it is not shown.
type ideText struct {
	Text    string `json:"text"`
	Message string `json:"message,omitempty"`
}

// FileVersions returns the versions of a file, for the Timeline.
func (d *Dashboard) FileVersions(r *http.Request, c workspace.Caller, id workspace.ID, f proxy.IDEFile) (any, error) {
	if err := d.mayReadPast(r.Context(), c, id); err != nil {
		return nil, err
	}
	out := ideVersions{Versions: []ideVersion{}}
	name, in := inHome(f.Path)
	if !in {
		return out, nil
	}
	page, err := service.VersionPageOf(r.Context(), d.Store, c, id, f.Cursor)
	if err != nil {
		return nil, err
	}
	ctx, end, err := d.readPast(r.Context(), c, page.Memory())
	if err != nil {
		return nil, err
	}
	defer end()
	l := d.set(r).lang
	found, err := page.Read(ctx, d.Archives.Generation, name)
	if errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
		return nil, &workspace.Error{Code: workspace.CodeUnavailable, Message: l.T("message.archive_unavailable.body"), Err: err}
	}
	for _, v := range found.Versions {
		out.Versions = append(out.Versions, ideVersionOf(l, v))
	}
	out.Cursor = found.NextCursor
	return out, err
}

func ideVersionOf(l *catalogue.Language, v api.FileVersion) ideVersion {
	s := ideVersion{Backup: v.Backup, At: v.At, Label: v.Note, Removed: v.Change == api.FileRemoved}
	if s.Label == "" {
		s.Label = l.T("backups.cause." + v.Cause)
	}
	switch v.Change {
	case api.FileAdded:
		s.Detail = l.T("changes.added") + ", " + l.Bytes(v.Size)
	case api.FileRemoved:
		s.Detail = l.T("changes.removed")
	default:
		s.Detail = l.Bytes(v.Size)
	}
	return s
}

// FileText returns the text of a file in a backup.
func (d *Dashboard) FileText(r *http.Request, c workspace.Caller, id workspace.ID, f proxy.IDEFile) (any, error) {
	if err := d.mayReadPast(r.Context(), c, id); err != nil {
		return nil, err
	}
	name, in := inHome(f.Path)
	b, err := d.Store.HomeBackup(r.Context(), c, id, f.Backup)
	if err != nil {
		return nil, err
	}
	if !in || b.State != workspace.BackupDone {
		return nil, workspace.NotFound("file")
	}
	ctx, end, err := d.readPast(r.Context(), c, b.Size)
	if err != nil {
		return nil, err
	}
	defer end()
	l := d.set(r).lang
	text, err := d.textOf(ctx, b, name)
	switch {
	case err == nil && strings.ContainsRune(text, 0), err == nil && !utf8.ValidString(text), errors.Is(err, fs.ErrInvalid):
		return ideText{Message: l.T("files.trouble.binary")}, nil
	case err == nil:
		return ideText{Text: text}, nil
	case errors.Is(err, errTooLarge):
		return ideText{Message: l.T("files.trouble.large")}, nil
	case errors.Is(err, store.ErrUnavailable), ctx.Err() != nil:
		return ideText{Message: l.T("message.archive_unavailable.body")}, nil
	case errors.Is(err, store.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return ideText{Message: l.T("message.backup_not_found.body")}, nil
	case errors.Is(err, archive.ErrCorrupted):
		return ideText{Message: l.T("files.trouble.damaged_backup")}, nil
	}
	return nil, err
}

var errTooLarge = errors.New("file too large to show")

// textOf reads a file of a backup of at most maxIDEText.
func (d *Dashboard) textOf(ctx context.Context, b workspace.Backup, name string) (string, error) {
	x, err := d.Archives.Files(ctx, b.Key, b.Size)
	if err != nil {
		return "", err
	}
	content, e, err := x.Open(ctx, name)
	if err != nil {
		return "", err
	}
	defer content.Close()
	if e.Size > maxIDEText {
		return "", errTooLarge
	}
	text, err := io.ReadAll(content)
	return string(text), err
}

// mayReadPast returns CodeForbidden unless the caller owns the workspace and no guest may use it: a program
// of a guest could read in the browser of the owner what the home no longer has.
func (d *Dashboard) mayReadPast(ctx context.Context, c workspace.Caller, id workspace.ID) error {
	if _, err := d.Store.Workspace(ctx, c, id); err != nil {
		return err
	}
	guests, err := d.Store.Guests(ctx, id)
	if err != nil {
		return err
	}
	for _, access := range guests {
		if access == workspace.AccessUse {
			return workspace.Errorf(workspace.CodeForbidden, "The IDE shows no versions of backups while the workspace is shared for use.")
		}
	}
	return nil
}

// readPast limits how much of backups is read at the same time for a user, and for how long.
func (d *Dashboard) readPast(ctx context.Context, c workspace.Caller, size int64) (context.Context, func(), error) {
	busy := workspace.Errorf(workspace.CodeUnavailable, "Too many backups are being read. Try again in a moment.")
	if !d.browsing.add(c.UserID) {
		return nil, nil, busy
	}
	release, ok := d.Archives.ReserveManifests(c.UserID, size)
	if !ok {
		d.browsing.remove(c.UserID)
		return nil, nil, busy
	}
	ctx, cancel := context.WithTimeout(ctx, filesWithin)
	return ctx, func() { cancel(); release(); d.browsing.remove(c.UserID) }, nil
}

// inHome returns the name in backups of a file with this path in the workspace.
func inHome(path string) (name string, in bool) {
	name, in = strings.CutPrefix(path, runtime.HomeDir+"/")
	return archive.CleanName(name), in
}
