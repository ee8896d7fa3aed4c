package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// Modes of the page with a passkey; its texts are passkey.<Mode>.
const (
	passkeyUse      = "use"      // a login uses one
	passkeyRegister = "register" // a login makes the first one
	passkeyNew      = "new"      // a user who is logged in adds one
)

// passkeyView is the page on which the browser uses or makes a passkey. Its script sends the
// browser's response with the form.
type passkeyView struct {
	Mode    string
	Action  string // address of the form
	Options string // address of the options for the browser
	Usable  bool   // a passkey works here; else only a recovery code does
	Name    string // of the user's account, or of the new passkey
	Next    string
	Problem string
	// Recovery: the problem is that of the recovery code.
	Recovery bool
}

// passkeyPath is the address of the page between the password and the session.
func passkeyPath(next string) string {
	if next = localPath(next); next == "/" {
		return "/passkey"
	}
	return "/passkey?next=" + url.QueryEscape(next)
}

// entered continues after a right password.
func (d *Dashboard) entered(w http.ResponseWriter, r *http.Request, e auth.Entry, next string) {
	if e.Pending != "" {
		http.SetCookie(w, d.Auth.PendingCookie(e.Pending))
		d.redirect(w, r, passkeyPath(next))
		return
	}
	accesslog.SetUser(r.Context(), e.Session.User.ID)
	http.SetCookie(w, d.Auth.Cookie(e.Session))
	d.redirect(w, r, next)
}

// readPending returns the page for the login that waits in this browser.
func (d *Dashboard) readPending(r *http.Request, next string) (passkeyView, error) {
	p, err := d.Auth.PendingLogin(r)
	v := passkeyView{Mode: passkeyUse, Action: "/passkey", Options: "/passkey/options", Usable: p.Usable, Name: p.Username, Next: localPath(next)}
	if p.Register {
		v.Mode, v.Usable = passkeyRegister, d.Auth.PasskeysPossible()
	}
	return v, err
}

func (d *Dashboard) passkeyPage(w http.ResponseWriter, r *http.Request) {
	v, err := d.readPending(r, r.URL.Query().Get("next"))
	if err != nil {
		d.passkeyFailed(w, r, v.Next, err)
		return
	}
	d.showPasskey(w, r, nil, http.StatusOK, v)
}

func (d *Dashboard) showPasskey(w http.ResponseWriter, r *http.Request, c *workspace.Caller, status int, v passkeyView) {
	p := d.newPage(r, c, "passkey."+v.Mode+".heading", v)
	p.Plain = true
	if c == nil {
		p.Path = passkeyPath(v.Next)
	} else {
		p.Path = "/settings/passkeys/register"
	}
	d.render(w, r, status, "passkey", p)
}

// passkeyFailed leads back to the login page if no login waits here any more.
func (d *Dashboard) passkeyFailed(w http.ResponseWriter, r *http.Request, next string, err error) {
	if workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		d.fail(w, r, err)
		return
	}
	http.SetCookie(w, d.Auth.PendingCookie(""))
	d.redirect(w, r, loginPath(next))
}

// loginOptions sends the browser what it needs to use or make a passkey, in JSON.
func (d *Dashboard) loginOptions(w http.ResponseWriter, r *http.Request) {
	options, err := d.Auth.LoginOptions(r, r.PostFormValue("name"))
	d.sendOptions(w, r, options, err)
}

func (d *Dashboard) passkeyOptions(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	options, err := d.Auth.PasskeyOptions(r.Context(), c)
	d.sendOptions(w, r, options, err)
}

func (d *Dashboard) sendOptions(w http.ResponseWriter, r *http.Request, options []byte, err error) {
	status := http.StatusOK
	if err != nil {
		status = statusOf(err)
		retryAfter(w, err)
		options, _ = json.Marshal(map[string]string{"problem": d.passkeyProblem(r, err)}) // a string
	}
	d.secureHeaders(w.Header())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(options) // an error means that the browser disconnected
}

// passkeyProblem is the text for a passkey that was not accepted.
func (d *Dashboard) passkeyProblem(r *http.Request, err error) string {
	l := d.set(r).lang
	switch workspace.CodeOf(err) {
	case workspace.CodeBadCredentials:
		return l.T("passkey.refused")
	case workspace.CodeLockedOut:
		return l.N("login.locked", max(1, lockedFor(err)))
	case workspace.CodeUnauthenticated:
		return l.T("passkey.expired")
	case workspace.CodeNotSupported:
		return l.T("passkey.elsewhere")
	case workspace.CodeInvalid:
		return l.T("passkey.name_bad")
	case workspace.CodeKeyTaken:
		return l.T("passkey.known")
	case workspace.CodeQuotaExceeded:
		return l.T("passkey.limit", postgres.MaxPasskeys)
	case workspace.CodeTooManyAttempts:
		return l.T("login.busy")
	}
	d.logFailure(r, err)
	return l.T("err.internal")
}

// finishPasskey ends the login that waits, with the browser's response.
func (d *Dashboard) finishPasskey(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.PostFormValue("next"))
	s, codes, err := d.Auth.FinishLogin(r, []byte(r.PostFormValue("response")))
	if err != nil {
		d.passkeyRefused(w, r, next, err, false)
		return
	}
	d.beginSession(w, r, s)
	if codes == nil {
		d.redirect(w, r, next)
		return
	}
	d.showCodes(w, r, s.Caller, codesView{Codes: codes, Back: next})
}

// useRecoveryCode ends the login that waits, with a recovery code.
func (d *Dashboard) useRecoveryCode(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.PostFormValue("next"))
	s, err := d.Auth.Recover(r, r.PostFormValue("code"))
	if err != nil {
		d.passkeyRefused(w, r, next, err, true)
		return
	}
	d.beginSession(w, r, s)
	d.redirect(w, r, next)
}

func (d *Dashboard) beginSession(w http.ResponseWriter, r *http.Request, s auth.Session) {
	accesslog.SetUser(r.Context(), s.User.ID)
	http.SetCookie(w, d.Auth.Cookie(s))
	http.SetCookie(w, d.Auth.PendingCookie(""))
}

// passkeyRefused shows the page of the login that waits again.
func (d *Dashboard) passkeyRefused(w http.ResponseWriter, r *http.Request, next string, err error, recovery bool) {
	var coded *workspace.Error
	v, gone := d.readPending(r, next)
	if gone != nil || !errors.As(err, &coded) {
		d.passkeyFailed(w, r, next, errors.Join(gone, err))
		return
	}
	v.Recovery, v.Problem = recovery, d.passkeyProblem(r, err)
	if recovery && coded.Code == workspace.CodeBadCredentials {
		v.Problem = d.set(r).lang.T("passkey.code_wrong")
	}
	retryAfter(w, err)
	d.showPasskey(w, r, nil, statusOf(err), v)
}

// codesView shows new recovery codes, once.
type codesView struct {
	Codes []string
	Back  string // where the page leads on
}

func (d *Dashboard) showCodes(w http.ResponseWriter, r *http.Request, c workspace.Caller, v codesView) {
	if isHTMX(r) {
		d.fragments(w, r, http.StatusOK, part{"codes-dialog", v})
		return
	}
	p := d.newPage(r, &c, "codes.title", v)
	p.Plain, p.Path = true, "/settings/account"
	d.render(w, r, http.StatusOK, "codes", p)
}

// passkeysView is the list of passkeys on the account page.
type passkeysView struct {
	auth.Passkeys
	Shown    bool // the user has a password
	Possible bool
	Required bool
	Address  string // of the server
	Now      time.Time
}

func (d *Dashboard) readPasskeys(r *http.Request, c workspace.Caller, password bool) (v passkeysView, err error) {
	v = passkeysView{Possible: d.Auth.PasskeysPossible(), Required: d.Auth.PasskeyRequired(), Now: d.Now()}
	if d.URL != nil {
		v.Address = d.URL.String()
	}
	v.Passkeys, err = d.Auth.Passkeys(r.Context(), c)
	v.Shown = password && (d.Auth.PasswordLogin() || len(v.List) > 0)
	return v, err
}

// passkeyForm is a form about a passkey or, without one in the address, about the recovery
// codes or a new one.
func (d *Dashboard) passkeyForm(name string, r *http.Request, c workspace.Caller) (*form, error) {
	f := d.form(name, r, nil)
	f.Back = "/settings/account"
	switch name {
	case "passkey":
		f.Action = "/settings/passkeys"
		return f, nil
	case "passkey-codes":
		f.Action = "/settings/passkeys/codes"
		return f, nil
	}
	list, err := d.Auth.Passkeys(r.Context(), c)
	if err != nil {
		return nil, err
	}
	for _, k := range list.List {
		if k.ID == r.PathValue("passkey") {
			f.Passkey, f.Danger, f.Value["passkey_name"] = &k, name == "passkey-remove", k.Name
			f.Action = "/settings/passkeys/" + k.ID + map[string]string{"passkey-remove": "/remove", "passkey-rename": "/rename"}[name]
			return f, nil
		}
	}
	return nil, workspace.NotFound("passkey")
}

// passkeyName reads the name of a passkey.
func (f *form) passkeyName() string {
	f.line("passkey_name", 100, true)
	return f.Value["passkey_name"]
}

// beginPasskey verifies the password, and leads to the page on which the browser makes the
// passkey.
func (d *Dashboard) beginPasskey(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.passkeyForm("passkey", r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	name := f.passkeyName()
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	proof, ok := d.verifyAgain(w, r, c, f)
	if !ok {
		return
	}
	err = d.Auth.BeginPasskey(r.Context(), c, proof, name)
	switch workspace.CodeOf(err) {
	case workspace.CodeNotSupported, workspace.CodeInvalid:
		f.Problem = d.passkeyProblem(r, err)
		d.again(w, r, c, f)
		return
	}
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	d.redirect(w, r, "/settings/passkeys/register")
}

func (d *Dashboard) newPasskeyPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	d.showNewPasskey(w, r, c, http.StatusOK, "")
}

func (d *Dashboard) showNewPasskey(w http.ResponseWriter, r *http.Request, c workspace.Caller, status int, problem string) {
	name, err := d.Auth.NewPasskey(r.Context(), c)
	if workspace.CodeOf(err) == workspace.CodeUnauthenticated {
		d.redirect(w, r, "/settings/account") // it was made already, or has expired
		return
	}
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.showPasskey(w, r, &c, status, passkeyView{
		Mode: passkeyNew, Action: "/settings/passkeys/register", Options: "/settings/passkeys/options", Usable: d.Auth.PasskeysPossible(), Name: name, Problem: problem,
	})
}

func (d *Dashboard) addPasskey(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	codes, err := d.Auth.AddPasskey(r.Context(), c, []byte(r.PostFormValue("response")))
	var coded *workspace.Error
	switch {
	case err == nil && codes == nil:
		d.redirect(w, r, notedAt("/settings/account", "passkey_added", ""))
	case err == nil:
		d.showCodes(w, r, c, codesView{Codes: codes, Back: notedAt("/settings/account", "passkey_added", "")})
	case errors.As(err, &coded):
		d.showNewPasskey(w, r, c, statusOf(err), d.passkeyProblem(r, err))
	default:
		d.fail(w, r, err)
	}
}

func (d *Dashboard) renamePasskey(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.passkeyForm("passkey-rename", r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	name := f.passkeyName()
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	if err := d.Auth.RenamePasskey(r.Context(), c, f.Passkey.ID, name); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	d.redirect(w, r, notedAt("/settings/account", "passkey_renamed", ""))
}

// provenForm reads a form about passkeys and verifies the password in it. If ok is false, the
// request was answered.
func (d *Dashboard) provenForm(dialog string, w http.ResponseWriter, r *http.Request, c workspace.Caller) (f *form, proof string, ok bool) {
	f, err := d.passkeyForm(dialog, r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return nil, "", false
	}
	proof, ok = d.verifyAgain(w, r, c, f)
	return f, proof, ok
}

func (d *Dashboard) removePasskey(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, proof, ok := d.provenForm("passkey-remove", w, r, c)
	if !ok {
		return
	}
	err := d.Auth.RemovePasskey(r.Context(), c, proof, f.Passkey.ID)
	if workspace.CodeOf(err) == workspace.CodeNotSupported {
		f.Problem = f.lang.T("passkeys.last")
		d.again(w, r, c, f)
		return
	}
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	d.redirect(w, r, notedAt("/settings/account", "passkey_removed", ""))
}

func (d *Dashboard) newRecoveryCodes(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	_, proof, ok := d.provenForm("passkey-codes", w, r, c)
	if !ok {
		return
	}
	codes, err := d.Auth.NewRecoveryCodes(r.Context(), c, proof)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	d.showCodes(w, r, c, codesView{Codes: codes, Back: "/settings/account"})
}

// removePasskeys removes the passkeys of a user, for an administrator.
func (d *Dashboard) removePasskeys(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	a, err := d.Store.RemovePasskeys(r.Context(), c, r.PathValue("person"))
	if err != nil {
		d.refuseUser(w, r, c, err)
		return
	}
	d.usersChanged(w, r, c, d.set(r).lang.T("toast.person_passkeys", a.Username))
}
