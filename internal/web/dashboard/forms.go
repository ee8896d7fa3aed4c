package dashboard

import (
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/templates"
	"codehub/internal/users/gitapps"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"

	"golang.org/x/text/unicode/norm"
)

// form is a dialog, or a page without scripts, with its fields and their errors. Its texts are
// dialog.<Name>.title, .submit and so on.
type form struct {
	Name    string
	Action  string // address to post to
	From    string
	Back    string // address of Cancel without scripts
	Value   map[string]string
	Errors  map[string]string // field → text
	Problem string            // error of the form as a whole
	Lines   []string          // what is wrong with the lines of a list
	Danger  bool

	W     *view           // the workspace, if any
	Token *postgres.Token // the token, if any

	Passkey *postgres.Passkey // the passkey, if any
	Secret  *api.Secret       // the secret, if any

	Backup      *backupRow   // that the form is about, if any
	Generations []generation // to choose from
	Image       string       // the default image
	Missing     string       // what to do about a missing image
	Sizes       []sizeChoice // to choose from; none: there is only one
	Allowed     []string     // patterns of the images that may be used; none: every image
	Public      bool         // a port may be shared with everyone
	Lasting     []int        // seconds to choose from
	Max         int          // the longest choice, in seconds
	TTL         workspace.TTL
	User        *postgres.User         // the user that an administrator edits, if any
	Any         *postgres.AnyWorkspace // the workspace that an administrator acts on, if any
	Owned       int                    // workspaces of User
	Group       *api.Group             // the group that the form is about, if any
	GroupAdmins bool                   // the form can make administrators of the group
	MaxRunning  int                    // running limit of users without a custom one, 0 for none
	Limit       *limitView             // the running limit that the new workspace would exceed, if any
	Files       int                    // unsaved files
	Grace       bool                   // a deletion can be undone if the home exists
	Empty       bool                   // no complete copy of the home exists
	Cancels     bool                   // a deletion cancels the running operation
	Choices     []choice               // workspaces to choose from
	Open        bool                   // the form is the page that a link to a repository leads to
	Existing    []workspace.Workspace  // on the same repository and branch
	Badge       badge
	Provider    string             // name of an identity provider, if any
	Templates   []templateCard     // to create a workspace from; none: there are no templates
	Params      []param            // of the template
	Changes     []settingChange    // that an update of the template makes
	Like        string             // name of the workspace whose settings the new one gets; empty: none
	Clones      []string           // repositories of the template or of Like
	Scripts     *workspace.Scripts // of the template or of Like; nil: none
	Lacks       []lackedSecret     // secrets that the template requires and the user has not stored
	GitApp      *gitapps.App       // that connects to the host of the form, if any
	OOB         bool
	Page        bool // a page of its own, not a dialog

	images imageref.Allowed
	sizes  workspace.Sizes
	lang   *catalogue.Language
	r      *http.Request

	template *templates.Entry     // that Templates has as chosen
	likeFrom *workspace.Workspace // of Like
}

// form returns the form with that name for ws, which may be nil.
func (d *Dashboard) form(name string, r *http.Request, ws *workspace.Workspace) *form {
	f := &form{
		Name: name, From: fromOf(r), Back: "/", Value: map[string]string{}, Errors: map[string]string{},
		Image: d.DefaultImage, Allowed: d.Images.Patterns(), images: d.Images, sizes: d.Sizes, Grace: d.DeleteGrace > 0, Page: !isHTMX(r) || asPage(r), lang: d.set(r).lang, r: r,
	}
	f.Sizes = d.sizeChoices(f.lang)
	if name == "new" {
		f.Missing = d.missingImage()
	}
	if ws != nil {
		v := d.viewOf(*ws, f.From)
		f.W, f.Empty, f.Cancels = &v, lifecycle.NoCopy(*ws), lifecycle.EndsForDeletion(*ws)
		f.Action = "/workspaces/" + v.ID + "/" + name
		f.Back = backTo(f.From, ws.ID)
		f.showDetails(*ws)
	}
	f.TTL, f.MaxRunning = d.TTL(), d.MaxRunning
	switch name {
	case "new":
		f.Action = "/workspaces"
		f.Value["start"] = "on"
		if r.Method == http.MethodPost {
			f.Value["start"] = r.PostFormValue("start")
		}
	case "edit", "timeouts":
		f.showTTL("standby", ws.StandbyTTL)
		f.showTTL("archive", ws.ArchiveTTL)
		f.showTTL("backup", ws.BackupInterval)
		f.Value["backup_keep"] = ws.BackupKeep
		f.showWorking(ws.AwakeWhileWorking)
	case "keep-awake":
		d.showKeepAwake(f, *ws)
	case "share-port":
		d.showShare(f, r)
	case "change-password":
		f.Action, f.Back = "/settings/account/password", "/settings/account"
	case "ssh-key":
		f.Action, f.Back = "/settings/keys", "/settings/account"
	case "token":
		f.Action, f.Back = "/settings/tokens", "/settings/tokens"
		f.Value["expires"], f.Value["scope"] = "90", string(workspace.ScopeWorkspaces)
	case "delete", "force-stop", "start-empty", "recover-archive", "revoke":
		f.Danger = true
	}
	return f
}

// ImageAbout is the key of what a change of the image does.
func (f *form) ImageAbout() string {
	if lifecycle.ImageBlocks(f.W.W) {
		return "dialog.image.about_starts"
	}
	return "dialog.image.about"
}

// Heading is the title of the dialog, and of the page.
func (f *form) Heading() string {
	key := "dialog." + f.Name + ".title"
	switch {
	case f.Like != "":
		return f.lang.T("dialog.duplicate.title", f.Like)
	case f.W != nil:
		return f.lang.T(key, f.W.Name)
	case f.Any != nil:
		return f.lang.T(key, f.Any.Name)
	case f.User != nil:
		return f.lang.T(key, f.User.Username)
	case f.Token != nil:
		return f.lang.T(key, f.Token.Name)
	case f.Passkey != nil:
		return f.lang.T(key, f.Passkey.Name)
	case f.Secret != nil:
		return f.lang.T(key, f.Secret.Name)
	case f.Group != nil && f.Name != secretNew:
		return f.lang.T(key, f.Group.Name)
	case f.Provider != "":
		return f.lang.T(key, f.Provider)
	}
	return f.lang.T(key)
}

// asPage reports whether the request comes from a form on a page of its own. With scripts, htmx
// sends such a form as well.
func asPage(r *http.Request) bool { return r.FormValue("page") != "" }

// TextPage is the address of the form as a page, if its text is kept when the session ends;
// empty for other forms.
func (f *form) TextPage() string {
	switch f.Name {
	case "new":
		if f.Open {
			return "" // the address has the values
		}
		return "/workspaces/new"
	case "edit":
		return f.Action
	}
	return ""
}

// Confirmed reports whether the user confirms by typing the workspace's name.
func (f *form) Confirmed() bool {
	return f.Name == "start-empty" || f.Name == "recover-archive" || f.Name == "any-start-empty" || f.Name == "any-recover-archive"
}

// Nothing reports that there is no choice, so the form cannot be sent.
func (f *form) Nothing() bool {
	return (f.Name == "recover-archive" || f.Name == "any-recover-archive") && len(f.Generations) == 0
}

// fail records the error of a field.
func (f *form) fail(field, key string, args ...any) { f.Errors[field] = f.lang.T(key, args...) }

func (f *form) bad() bool { return len(f.Errors) > 0 || f.Problem != "" }

// line validates a field of one line and at most limit characters, in Unicode form NFC.
func (f *form) line(field string, limit int, required bool) {
	s := norm.NFC.String(strings.TrimSpace(f.r.PostFormValue(field)))
	f.Value[field] = s
	switch {
	case required && s == "":
		f.fail(field, "field.required")
	case required && !workspace.Visible(s):
		f.fail(field, "field.invisible")
	case utf8.RuneCountInString(s) > limit:
		f.fail(field, "field.too_long", limit)
	case !utf8.ValidString(s), strings.ContainsFunc(s, workspace.Unprintable):
		f.fail(field, "field.characters")
	}
}

// lines validates a field of several lines and at most limit bytes.
func (f *form) lines(field string, limit int) {
	s := clean(f.r.PostFormValue(field))
	f.Value[field] = s
	if len(s) > limit {
		f.fail(field, "field.too_long", limit)
	}
}

// dialog serves a form: as a fragment to htmx, else as a page.
func (d *Dashboard) dialog(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.openForm(name, r, c)
		if err != nil {
			d.refuse(w, r, c, "", err)
			return
		}
		d.showForm(w, r, c, http.StatusOK, f)
	}
}

func (d *Dashboard) openForm(name string, r *http.Request, c workspace.Caller) (*form, error) {
	switch name {
	case "new":
		f := d.form(name, r, nil)
		if err := d.showTemplates(r, c, f); err != nil {
			return nil, err
		}
		if err := d.showQuota(r, c, f); err != nil {
			return nil, err
		}
		return f, d.readNewLimit(r, c, f)
	case "token":
		f := d.form(name, r, nil)
		if err := d.showTokenChoices(r, c, f); err != nil {
			return nil, err
		}
		return f, d.showQuota(r, c, f)
	case "ssh-key":
		f := d.form(name, r, nil)
		return f, d.showQuota(r, c, f)
	case "change-password":
		return d.form(name, r, nil), nil
	case "dotfiles":
		return d.dotfilesForm(r, c)
	case "revoke":
		return d.revokeForm(r, c)
	case "link":
		return d.linkForm(r)
	case "unlink":
		return d.unlinkForm(r, c)
	case "passkey", "passkey-rename", "passkey-remove", "passkey-codes":
		return d.passkeyForm(name, r, c)
	}
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		return nil, err
	}
	if name == "recover-archive" {
		return d.recoverForm(r, c, ws)
	}
	f := d.form(name, r, &ws)
	if name == "update-template" {
		return f, d.showUpdate(r.Context(), c, f, ws)
	}
	return f, nil
}

func (d *Dashboard) showForm(w http.ResponseWriter, r *http.Request, c workspace.Caller, status int, f *form) {
	if isHTMX(r) {
		d.fragments(w, r, status, part{"dialog", f})
		return
	}
	p := d.newPage(r, &c, "", f)
	p.Title = f.Heading()
	d.render(w, r, status, "form", p)
}

// again shows a form again, with its errors.
func (d *Dashboard) again(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form) {
	if isHTMX(r) {
		f.OOB = true
		d.fragments(w, r, http.StatusUnprocessableEntity, part{"form", f})
		return
	}
	d.showForm(w, r, c, http.StatusUnprocessableEntity, f)
}

// refuseForm responds to a form that the store refused: the error is shown at its field, or in
// the form if the user can correct it there.
func (d *Dashboard) refuseForm(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form, err error) {
	var e *workspace.Error
	if !errors.As(err, &e) {
		d.refuse(w, r, c, "", err)
		return
	}
	switch e.Code {
	case workspace.CodeNameTaken:
		name := "name"
		if f.Name == "fork" {
			name = "fork_name"
		}
		f.fail(name, "field.name_taken")
	case workspace.CodeImageNotAllowed:
		f.Errors["image"] = imageRefused(f.lang, "field.image_not_allowed", allowedOf(e))
	case workspace.CodeLimitExceeded:
		if perUser, n := limitOf(e); perUser {
			f.Problem = f.lang.T("create.limit", n)
		} else {
			f.Problem = f.lang.T("create.limit_global")
		}
	case workspace.CodeQuotaExceeded:
		f.Problem = quotaProblem(f.lang, e)
	case workspace.CodeInvalid, workspace.CodeTooLarge:
		f.Problem = f.lang.T("err." + string(e.Code))
	default:
		if key := f.errorText(e.Code); key != "err."+string(e.Code) {
			f.Problem = f.lang.T(key)
			break
		}
		d.refuse(w, r, c, "", err)
		return
	}
	d.again(w, r, c, f)
}

// errorText returns the key of the text for an error: that of the form, if it has one.
func (f *form) errorText(code workspace.Code) string {
	if own := "err." + strings.TrimPrefix(f.Name, "any-") + "." + string(code); f.lang.Has(own) {
		return own
	}
	return "err." + string(code)
}
