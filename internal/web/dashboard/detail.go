package dashboard

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// detailView is a workspace's page.
type detailView struct {
	view
	Checks      []check
	Generations []generation
	Paging      paging // of Generations
	Backups     backupState
	OOB         bool
	Listed      portsView
	// ImageWaits reports that the container uses another image than the configured one.
	ImageWaits bool
	// UpdateWaits reports that an update of the image takes effect at the next start.
	UpdateWaits bool
	Pin         *workspace.ImagePin // of the last start; nil: none of this image
	// Size is the size of the next start. SizeGone reports that the chosen one is not
	// offered any more, SizeWaits that the container has another one.
	Size                workspace.Size
	SizeGone, SizeWaits bool
	Sizes               bool // there are several to choose from
	// Space is the disk space of the home. MayFree reports that the workspace may be started
	// over its limit.
	Space   lifecycle.HomeSpace
	MayFree bool
	// OverBytes is the limit of bytes that keeps the workspace at rest from starting; nil: none.
	OverBytes *bytesView
	// EnvNames are the names of the environment variables; the values may be secrets. EnvWaits
	// reports that the container was created with others.
	EnvNames []string
	EnvWaits bool
	Sharable bool // the workspace can be shared
	// Asked is the hand-over that the owner is asked to accept; nil: none. AskedWaits reports that
	// the workspace is not at rest yet.
	Asked      *postgres.HandOverRequest
	AskedWaits bool
	Connect    connectView
	// Repositories are those that the workspace was created with, and Badge opens the first one.
	Repositories []workspace.Repository
	Lacks        []lackedSecret // secrets that it requires and does not have
	Project      bool           // the setup has steps of its project
	Badge        badge
}

// FreesBytes reports whether the panel offers the start to free space: at the limit of bytes, unless
// the facts offer it over the limit of the home.
func (v detailView) FreesBytes() bool {
	return v.OverBytes != nil && v.OverBytes.MayFree() && !v.MayFree
}

// check is one condition, with the texts condition.<Type> and reason.<Reason>.
type check struct {
	Type string
	workspace.Condition
}

var checkOrder = []workspace.ConditionType{workspace.ContainerReady, workspace.VolumeReady, workspace.ArchiveReady, workspace.Healthy}

func (d *Dashboard) detailOf(w workspace.Workspace) detailView {
	v := detailView{view: d.viewOf(w, fromDetail), ImageWaits: lifecycle.ImageWaits(w), UpdateWaits: lifecycle.UpdateWaits(w),
		EnvNames: slices.Sorted(maps.Keys(w.Env)), EnvWaits: lifecycle.EnvWaits(w), Sharable: !d.PathMode,
		Size: d.Sizes.Of(w.Size), SizeGone: !d.Sizes.Has(w.Size), SizeWaits: lifecycle.SizeWaits(w, d.Sizes), Sizes: len(d.Sizes.Offered) > 0 || w.Size != "",
		Space: lifecycle.SpaceOf(w, d.Sizes), Connect: d.connectOf(w, "")}
	v.MayFree = v.Space.Over() && v.State == "stopped" && lifecycle.MayFree(w, v.Now)
	if pin := w.ImagePin; pin != nil && pin.Ref == w.ImageRef {
		v.Pin = pin
	}
	v.Project = !w.Project.Empty()
	if p := w.Project; p != nil && len(p.Repositories) > 0 {
		v.Repositories, v.Badge = p.Repositories, d.badgeOf(p.Repositories[0], nil)
	}
	for _, t := range checkOrder {
		v.Checks = append(v.Checks, check{string(t), shown(w, t)})
	}
	return v
}

// shown is a condition as the page shows it: in ERROR a workspace is not healthy, and a partly
// filled volume is not being prepared.
func shown(w workspace.Workspace, t workspace.ConditionType) workspace.Condition {
	c := w.Conditions.Get(t)
	if w.Phase != workspace.PhaseError {
		return c
	}
	switch {
	case t == workspace.Healthy && c.True():
		c.Status, c.Reason = "False", "InError"
	case c.Reason == workspace.ReasonFilling:
		c.Reason = "Incomplete"
	}
	return c
}

// readDetail is detailOf with the data that is not in the workspace's row.
// cursor is that of its archives.
func (d *Dashboard) readDetail(ctx context.Context, c workspace.Caller, w workspace.Workspace, cursor string) (detailView, error) {
	v := d.detailOf(w)
	v.view = v.view.to(c)
	if v.State == "stopped" || v.State == "archived" {
		var err error
		if v.OverBytes, err = d.overBytes(ctx, c, w.ID); err != nil {
			return v, err
		}
	}
	var err error
	if v.Lacks, err = d.lackedBy(ctx, c, w); err != nil {
		return v, err
	}
	asked, err := d.Store.HandOverRequest(ctx, c, w.ID)
	switch {
	case err == nil:
		_, moving := lifecycle.HandOver(w, "another", w.Name)
		v.Asked, v.AskedWaits = &asked, moving != nil
	case workspace.CodeOf(err) != workspace.CodeNotFound:
		return v, err
	}
	if v.Backups, err = d.readBackupState(ctx, c, w, fromDetail); err != nil {
		return v, err
	}
	list, next, err := d.generations(ctx, c, w, postgres.Page{Limit: archivesShown, Cursor: cursor})
	v.Generations, v.Paging = list, pagingOf("/workspaces/"+v.ID, "archives", cursor, next)
	return v, err
}

// archivesShown is how many archives a page of a workspace shows.
const archivesShown = 20

// workspaceOf reads the workspace that the path names. An invalid id is not found.
func (d *Dashboard) workspaceOf(ctx context.Context, r *http.Request, c workspace.Caller) (workspace.Workspace, error) {
	id, err := idOf(r)
	if err != nil {
		return workspace.Workspace{}, err
	}
	return d.Store.Workspace(ctx, c, id)
}

func idOf(r *http.Request) (workspace.ID, error) {
	id := r.PathValue("id")
	if !workspace.ValidID(id) {
		return "", workspace.NotFound("workspace")
	}
	return workspace.ID(id), nil
}

func (d *Dashboard) detail(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if workspace.CodeOf(err) == workspace.CodeForbidden {
		if _, missing := d.Store.SharedWorkspace(r.Context(), c, workspace.ID(r.PathValue("id"))); missing == nil {
			d.redirect(w, r, "/shared/"+r.PathValue("id")) // where the IDE leads guests to
			return
		}
	}
	if err != nil {
		d.fail(w, r, err)
		return
	}
	cursor := r.URL.Query().Get("archives")
	v, err := d.readDetail(r.Context(), c, ws, cursor)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v.Listed = d.readPorts(r.Context(), c, ws)
	p := d.newPage(r, &c, "detail.title", v)
	p.Title, p.Nav = ws.Name, "workspaces"
	query := url.Values{"workspace": {v.ID}}
	if cursor != "" {
		query.Set("archives", cursor)
	}
	p.Stream = d.streamOf(r, "/dashboard/events?"+query.Encode(), d.liveDetail(v), p.Notices)
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "detail", p)
}

// liveDetail is what a workspace's page shows.
func (d *Dashboard) liveDetail(v detailView) livePage {
	v.view, v.OOB, v.Connect.OOB = timeless(v.view), true, true
	s := livePageOf(v, "panel", "connect-oob", "ports", "backups", "archives", "facts")
	s.busy = v.Backups.Present != nil || v.Backups.Restoring != nil
	s.views, s.due = []view{v.view}, v.Listed.firstEnd()
	// The database, by whose clock a share ends, may be behind.
	if next := d.Now().Add(time.Second); !s.due.IsZero() && s.due.Before(next) {
		s.due = next
	}
	return s
}

// followDetail reads a workspace's page again; cursor is that of its archives.
func (d *Dashboard) followDetail(id workspace.ID, cursor string, ports *portWatcher) func(context.Context) (livePage, error) {
	return func(ctx context.Context) (livePage, error) {
		ws, err := d.Store.Workspace(ctx, ports.c, id)
		if err != nil {
			return liveLost(err)
		}
		v, err := d.readDetail(ctx, ports.c, ws, cursor)
		if err != nil {
			return livePage{}, err
		}
		v.Listed = ports.read(ctx, ws)
		return d.liveDetail(v), nil
	}
}

// lostMessage returns the message for a user whose workspace no longer exists, or was handed over;
// "": the error says neither.
func lostMessage(err error) string {
	switch workspace.CodeOf(err) {
	case workspace.CodeNotFound:
		return "not_found"
	case workspace.CodeForbidden:
		return "forbidden"
	}
	return ""
}

// liveLost says why the page's workspace is not there.
func liveLost(err error) (livePage, error) {
	message := lostMessage(err)
	if message == "" {
		return livePage{}, err
	}
	return livePageOf(message, "panel-gone"), nil
}

// Bounds of the log viewer.
const (
	logLines = 500
	logBytes = 128 << 10
)

// logView is the container's last lines.
type logView struct {
	Text   string
	None   bool   // no container, or no output
	Err    bool   // Docker did not respond, or the user reads maxFollowed others
	Hidden int    // routine lines of the IDE that Text lacks
	All    string // the address with them
}

func (d *Dashboard) logs(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := d.readLog(r.Context(), c, ws)
	if r.URL.Query().Get("all") == "" {
		v.Text, v.Hidden = withoutRoutine(v.Text)
		v.All = r.URL.Path + "?all=on"
	}
	d.fragments(w, r, http.StatusOK, part{"log", v})
}

// readLog reads the last lines of a container for a user.
func (d *Dashboard) readLog(ctx context.Context, c workspace.Caller, ws workspace.Workspace) (v logView) {
	if ws.Conditions.HasContainer() {
		if !d.reading.add(c.UserID) {
			return logView{Err: true}
		}
		defer d.reading.remove(c.UserID)
		tail := &tailWriter{max: logBytes}
		if err := d.Logs.Logs(ctx, ws.ID, logLines, false, tail); err != nil {
			// The container may be gone by now. The controller reports all other errors of
			// Docker.
			d.Log.Debug("read the container's log failed", "workspace", ws.ID, "err", err)
			v.Err = tail.buf.Len() == 0 && !errors.Is(err, runtime.ErrNotFound)
		}
		v.Text = readable(tail.buf.String())
	}
	v.None = v.Text == "" && !v.Err
	return v
}

// tailWriter keeps the last max bytes written to it.
type tailWriter struct {
	buf bytes.Buffer
	max int
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if over := t.buf.Len() - t.max; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

// readable drops escape sequences and control characters other than tabs and line breaks.
func readable(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			i = skipEscape(s, i+1)
			continue
		}
		c, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case c == '\n' || c == '\t':
			b.WriteRune(c)
		case c == utf8.RuneError && n == 1, c < 0x20, c >= 0x7f && c < 0xa0:
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// skipEscape returns the end of the escape sequence that began before i.
func skipEscape(s string, i int) int {
	if i >= len(s) {
		return i
	}
	switch s[i] {
	case '[': // CSI: ends with a byte of @ to ~
		for i++; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				return i + 1
			}
		}
		return i
	case ']': // OSC: ends with BEL or ESC \
		for i++; i < len(s); i++ {
			if s[i] == 0x07 {
				return i + 1
			}
			if s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				return i + 2
			}
			if s[i] == '\n' {
				return i
			}
		}
		return i
	}
	return i + 1
}
