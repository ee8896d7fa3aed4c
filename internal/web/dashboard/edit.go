package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"codehub/internal/postgres"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

func (d *Dashboard) create(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f := d.form("new", r, nil)
	if err := d.showTemplates(r, c, f); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	f.line("name", workspace.MaxName, true)
	f.lines("description", workspace.MaxDescription)
	f.image(false, c.UserID)
	f.size()
	f.Open = r.PostFormValue("open") != ""
	project := f.readRepository()
	if err := d.readNewLimit(r, c, f); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	n := postgres.NewWorkspace{
		Name: f.Value["name"], Description: f.Value["description"], ImageRef: f.Value["image"], Size: f.Value["size"],
		StorageBackend: d.StorageBackend, Desired: workspace.DesiredStandby, TimeZone: timeZone(r), Project: project,
	}
	if err := d.settle(r.Context(), c, f, &n); err != nil {
		if f.failTemplate(err) {
			d.again(w, r, c, f)
			return
		}
		d.refuseForm(w, r, c, f, err)
		return
	}
	if n.ImageRef == "" {
		n.ImageRef = d.DefaultImage
	}
	// start is "on", or the id of the workspace to stop so that this one can start.
	start := r.PostFormValue("start")
	stop := workspace.ValidID(start)
	switch {
	case stop:
		n.Queued = workspace.DesiredRunning
	case start != "":
		n.Desired = workspace.DesiredRunning
	}
	ws, err := d.Store.CreateWorkspace(r.Context(), c, n)
	if err != nil {
		d.refuseForm(w, r, c, f, err)
		return
	}
	note := "create"
	if stop {
		// Even if that fails, the new workspace is queued: it starts when the limit allows.
		if err := d.freeSlot(r.Context(), c, workspace.ID(start)); err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
			d.logFailure(r, err)
			note = "create_waits"
		}
	}
	if f.Open && ws.DesiredState == workspace.DesiredRunning {
		d.redirect(w, r, entryPath(ws.ID, ""))
		return
	}
	d.done(w, r, c, ws.ID, note)
}

// patch handles the form with that name: read returns what the form changes, and note names the
// confirmation.
func (d *Dashboard) patch(name, note string, read func(*form) postgres.Patch) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		ws, err := d.workspaceOf(r.Context(), r, c)
		if err != nil {
			d.refuse(w, r, c, "", err)
			return
		}
		f := d.form(name, r, &ws)
		p := read(f)
		if f.bad() {
			d.again(w, r, c, f)
			return
		}
		if _, err := d.Store.PatchWorkspace(r.Context(), c, ws.ID, p); err != nil {
			d.refuseForm(w, r, c, f, err)
			return
		}
		note := note
		if p.Image != nil && *p.Image != ws.ImageRef && lifecycle.ImageBlocks(ws) {
			note = "image_starts"
		}
		d.done(w, r, c, ws.ID, note)
	}
}

func (f *form) details() postgres.Patch {
	p := f.timeouts()
	for _, t := range workspace.Texts {
		if t.Line {
			f.line(t.Name, t.Max, t.Required)
		} else {
			f.lines(t.Name, t.Max)
		}
		v := f.Value[t.Name]
		*t.New(&p.Edit) = &v
	}
	return p
}

func (f *form) timeouts() postgres.Patch {
	p := postgres.Patch{StandbyTTL: f.ttl("standby"), ArchiveTTL: f.ttl("archive"), AwakeWhileWorking: f.working()}
	p.BackupInterval, p.BackupKeep = f.backups()
	return p
}

// backups reads how often the home is backed up, and which backups are kept. A form without these
// fields leaves them unchanged.
func (f *form) backups() (interval workspace.Optional[int], keep *string) {
	interval = f.ttl("backup")
	if v := interval.Value; v != nil && *v > 0 && *v < workspace.MinBackupInterval {
		f.fail("backup_ttl", "field.backup_interval_bad", workspace.MinBackupInterval/60)
	}
	const field = "backup_keep"
	if !f.r.PostForm.Has(field) {
		return interval, nil
	}
	rule := strings.TrimSpace(f.r.PostFormValue(field))
	f.Value[field] = rule
	if _, err := workspace.ParseKeep(rule); rule != "" && (err != nil || len(rule) > workspace.MaxBackupKeep) {
		f.fail(field, "field.backup_keep_bad")
	}
	return interval, &rule
}

// newImage returns the patch of the image, which the next start uses.
func (f *form) newImage() postgres.Patch {
	f.image(true, f.W.W.OwnerID)
	image := f.Value["image"]
	return postgres.Patch{Image: &image}
}

func (d *Dashboard) memo(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	d.carryOut(w, r, c, func(ctx context.Context, c workspace.Caller, id workspace.ID, r *http.Request) (string, error) {
		memo := clean(r.PostFormValue("memo"))
		if len(memo) > workspace.MaxMemo {
			return "", workspace.Errorf(workspace.CodeTooLarge, "The notes are too long.")
		}
		_, err := d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{Edit: workspace.Edit{Memo: &memo}})
		return "memo", err
	})
}

// showDetails fills in the editable fields of a workspace.
func (f *form) showDetails(ws workspace.Workspace) {
	for _, t := range workspace.Texts {
		f.Value[t.Name] = *t.Current(&ws)
	}
	switch f.Name {
	case "image":
		f.Value["image"] = ws.ImageRef
	case "size":
		f.Value["size"] = ws.Size
	case "env":
		f.Value["env"] = environ.Format(ws.Env)
	}
}

// image validates the field of the container image of a workspace of this owner.
func (f *form) image(required bool, owner string) {
	f.line("image", imageref.MaxLength, required)
	if image := f.Value["image"]; image != "" && !imageref.Valid(image) {
		f.fail("image", "field.image_bad")
	} else if image != "" && !f.images.Allows(image, owner) {
		f.Errors["image"] = imageRefused(f.lang, "field.image_not_allowed", f.images.Patterns())
	}
}

// imageRefused returns the text with this key about the allowed images, or that for an image of
// another user on a server that allows every other image.
func imageRefused(l *catalogue.Language, key string, allowed []string) string {
	if len(allowed) == 0 {
		return l.T("field.image_refused")
	}
	return l.T(key, strings.Join(allowed, ", "))
}

// allowedOf returns the patterns in the details of a CodeImageNotAllowed error.
func allowedOf(e *workspace.Error) []string {
	list, _ := e.Details["allowed_images"].([]string)
	return list
}

// environment returns the patch that replaces the environment variables.
func (f *form) environment() postgres.Patch {
	f.lines("env", maxEnvText)
	env, err := environ.Parse(f.Value["env"])
	var e *environ.Error
	if errors.As(err, &e) {
		f.failEnv(e)
	}
	change := lifecycle.EnvChange{Replace: true, Set: map[string]*string{}}
	for name, value := range env {
		change.Set[name] = &value
	}
	return postgres.Patch{Env: &change}
}

// maxEnvText is longer than all lines of variables that are allowed.
const maxEnvText = 2 * environ.MaxBytes

func (f *form) failEnv(e *environ.Error) {
	var args []any
	switch e.Reason {
	case environ.Reserved, environ.Twice, environ.BadValue, environ.NoEnd:
		args = []any{e.Name}
	case environ.LongName:
		args = []any{environ.MaxName}
	case environ.Long:
		args = []any{e.Name, environ.MaxValue}
	case environ.TooMany:
		args = []any{environ.MaxVariables}
	case environ.TooLarge:
		args = []any{environ.MaxBytes}
	}
	text := f.lang.T("env."+e.Reason, args...)
	if e.Line > 0 {
		text = f.lang.T("env.line", e.Line, text)
	}
	f.Errors["env"] = text
}

// timeZone returns the browser's time zone, which the script adds to forms that start a
// workspace; empty if it is unknown.
func timeZone(r *http.Request) string {
	if zone := r.PostFormValue("time_zone"); environ.ValidZone(zone) {
		return zone
	}
	return ""
}
