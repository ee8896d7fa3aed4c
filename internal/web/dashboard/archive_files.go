package dashboard

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

const (
	// filesShown and filesBytes bound a page of a folder: its entries, and the bytes of their names.
	filesShown = 500
	filesBytes = 256 << 10
	// textShown is the size of the largest file that a page shows.
	textShown = 256 << 10
	// filesWithin bounds the requests to the bucket for a page.
	filesWithin = 30 * time.Second
)

// archivePlace is a path in an archive or a backup of a workspace.
type archivePlace struct {
	ID     workspace.ID
	Backup string // id of the backup; "": an archive
	OpID   string // of the archive; "": the current one
	Path   string // any bytes; "." is the home
}

// url returns the address of a page or download of this path.
func (p archivePlace) url(prefix, what string, more ...string) string {
	q := url.Values{"path": {p.Path}}
	if p.OpID != "" {
		q.Set("archive_op_id", p.OpID)
	}
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	in := "/archive/"
	if p.Backup != "" {
		in = "/backups/" + p.Backup + "/"
	}
	return prefix + "/workspaces/" + string(p.ID) + in + what + "?" + q.Encode()
}

func (p archivePlace) at(name string) archivePlace {
	p.Path = name
	return p
}

// Folder is the address of the page of a folder, File that of a file, and Download that of its content.
func (p archivePlace) Folder() string   { return p.url("", "files") }
func (p archivePlace) File() string     { return p.url("", "file") }
func (p archivePlace) Download() string { return p.url("/api/v1", "file") }

// Whole is the address of the download of the archive; "" for a backup.
func (p archivePlace) Whole() string {
	if p.Backup != "" {
		return ""
	}
	to := "/workspaces/" + string(p.ID) + "/download"
	if p.OpID != "" {
		to += "?" + url.Values{"archive_op_id": {p.OpID}}.Encode()
	}
	return to
}

// Name is the last element of the path, as pages show it.
func (p archivePlace) Name() string { return shownName(path.Base(p.Path)) }

// Parents are the folders that the path is in, from the home.
func (p archivePlace) Parents() (out []archivePlace) {
	for name := p.Path; name != "."; {
		name = path.Dir(name)
		out = append([]archivePlace{p.at(name)}, out...)
	}
	return out
}

// shownName replaces what is not printed in a name: bytes that are not UTF-8, control characters, and
// those that change the direction of text.
func shownName(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// Back is the address of the page that leads to the archive or backup.
func (p archivePlace) Back() string {
	if p.Backup != "" {
		return backTo(fromBackups, p.ID)
	}
	return backTo(fromDetail, p.ID)
}

// filesView is the page of a folder of an archive or backup, or of a file in it.
type filesView struct {
	archivePlace
	Workspace string
	At        time.Time // of a backup
	Trouble   string    // why nothing is shown, as a text files.trouble.*; "" if something is
	// Of a folder.
	Rows   []fileRow
	Paging paging
	// Of a file.
	IsFile bool
	Row    fileRow
	Text   string
}

// fileRow is a file, folder or link.
type fileRow struct {
	archivePlace
	IsFolder, IsLink bool
	Shown            bool // a page may show the content
	Target           string
	SameAs           string
	Size             int64
	At               time.Time // zero if it has no date that browsers read
}

func (p archivePlace) row(e archive.Entry) fileRow {
	f := fileRow{archivePlace: p.at(e.Name), IsFolder: e.Mode.IsDir(), IsLink: e.Link != "", Target: shownName(e.Link), SameAs: shownName(e.SameAs), Size: e.Size,
		Shown: e.Mode.IsRegular() && e.Size <= textShown}
	if y := e.ModTime.UTC().Year(); y >= 0 && y <= 9999 {
		f.At = e.ModTime
	}
	return f
}

// archiveFiles is the page of a folder of an archive.
func (d *Dashboard) archiveFiles(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	d.ofArchive(w, r, c, func(ctx context.Context, x archive.Files, v *filesView) error {
		cursor := r.URL.Query().Get("cursor")
		list, next, err := x.List(ctx, v.Path, cursor, filesShown, filesBytes)
		for _, e := range list {
			v.Rows = append(v.Rows, v.row(e))
		}
		if next != "" {
			v.Paging.Next = v.url("", "files", "cursor", next)
		}
		if cursor != "" {
			v.Paging.First = v.Folder()
		}
		return err
	})
}

// archiveFile is the page that shows a text file of an archive.
func (d *Dashboard) archiveFile(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	d.ofArchive(w, r, c, func(ctx context.Context, x archive.Files, v *filesView) error {
		content, e, err := x.Open(ctx, v.Path)
		if err != nil {
			return err
		}
		defer content.Close()
		v.IsFile, v.Row = true, v.row(e)
		if e.Size > textShown {
			v.Trouble = "large"
			return nil
		}
		text, err := io.ReadAll(content)
		if v.Text = string(text); !utf8.ValidString(v.Text) || strings.ContainsRune(v.Text, 0) {
			v.Text, v.Trouble = "", "binary"
		}
		return err
	})
}

// ofArchive shows what read adds to the page of the requested path.
func (d *Dashboard) ofArchive(w http.ResponseWriter, r *http.Request, c workspace.Caller, read func(context.Context, archive.Files, *filesView) error) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	q := r.URL.Query()
	place := archivePlace{ID: ws.ID, Backup: r.PathValue("backup"), Path: archive.CleanName(q.Get("path"))}
	a := workspace.Archive{Key: ws.ArchiveKey, Size: ws.ArchiveSize}
	v, title, missing := filesView{Workspace: ws.Name}, "files.title", "archive_not_found"
	if place.Backup != "" {
		var b workspace.Backup
		if b, err = d.Store.HomeBackup(r.Context(), c, ws.ID, place.Backup); err != nil {
			d.failBackup(w, r, err)
			return
		}
		if a = b.Archive(); b.State != workspace.BackupDone {
			a.Key = ""
		}
		v.At, title, missing = a.CreatedAt, "files.of_backup", "backup_not_found"
	} else if place.OpID = q.Get("archive_op_id"); place.OpID != "" {
		a, err = d.Store.Archive(r.Context(), c, ws.ID, place.OpID)
	}
	v.archivePlace = place
	switch {
	case err != nil && workspace.CodeOf(err) != workspace.CodeArchiveNotFound:
		d.fail(w, r, err)
		return
	case a.Key == "", place.Backup == "" && workspace.SharedArchive(ws.ID, a.Key):
		d.message(w, r, http.StatusNotFound, missing)
		return
	}
	if !d.browsing.add(c.UserID) {
		d.message(w, r, http.StatusTooManyRequests, "reading")
		return
	}
	defer d.browsing.remove(c.UserID)
	if place.Backup != "" {
		release, ok := d.Archives.ReserveManifests(c.UserID, a.Size)
		if !ok {
			d.message(w, r, http.StatusTooManyRequests, "reading")
			return
		}
		defer release()
	}
	ctx, cancel := context.WithTimeout(r.Context(), filesWithin)
	defer cancel()
	bare := v
	x, err := d.Archives.Files(ctx, a.Key, a.Size)
	if err == nil {
		err = read(ctx, x, &v)
	}
	switch {
	case err == nil:
	case errors.Is(err, store.ErrNotFound): // also if a cause is one of those below
		d.message(w, r, http.StatusNotFound, missing)
		return
	case errors.Is(err, store.ErrUnavailable), ctx.Err() != nil:
		d.Log.Warn("read an archive failed", "workspace", ws.ID, "err", err)
		d.message(w, r, http.StatusServiceUnavailable, "archive_unavailable")
		return
	case errors.Is(err, archive.ErrNoIndex):
		v = bare
		v.Trouble = "no_index"
	case errors.Is(err, archive.ErrCorrupted):
		v = bare
		if v.Trouble = "damaged"; place.Backup != "" {
			v.Trouble = "damaged_backup"
		}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid), errors.Is(err, archive.ErrCursor):
		d.message(w, r, http.StatusNotFound, "file_not_found")
		return
	default:
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, title, v)
	p.Nav = "workspaces"
	d.render(w, r, http.StatusOK, "files", p)
}
