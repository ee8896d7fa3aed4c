package dashboard

import (
	"errors"
	"net/http"

	"codehub/internal/postgres"
	"codehub/internal/users/signin"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// providers lists the identity providers that users log in with.
func (d *Dashboard) providers() []signin.Provider {
	if d.SignIn == nil {
		return nil
	}
	return d.SignIn.Providers()
}

// providerName returns the name of an issuer, or the issuer if the settings do not name it
// any more.
func (d *Dashboard) providerName(issuer string) string {
	for _, p := range d.providers() {
		if p.Issuer == issuer {
			return p.Name
		}
	}
	return issuer
}

// signInRoutes registers the pages of logins with identity providers.
func (d *Dashboard) signInRoutes(handle func(pattern string, h http.HandlerFunc), loggedIn func(pattern string, h callerHandler)) {
	if d.SignIn == nil {
		return
	}
	handle("GET /login/{provider}", d.beginSignIn)
	handle("GET /login/{provider}/callback", d.finishSignIn)
	handle("POST /login/{provider}/logout", func(w http.ResponseWriter, r *http.Request) {
		d.SignIn.ServeLogout(w, r, r.PathValue("provider"))
	})
	loggedIn("GET /settings/identities/{provider}/link", d.dialog("link"))
	loggedIn("POST /settings/identities/{provider}/link", d.link)
	loggedIn("GET /settings/identities/{identity}/unlink", d.dialog("unlink"))
	loggedIn("POST /settings/identities/{identity}/unlink", d.unlink)
}

// beginSignIn sends the browser to a provider. It changes nothing on the server. From
// another site it only leads to the login page, so that no page can log its visitors in.
func (d *Dashboard) beginSignIn(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.URL.Query().Get("next"))
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		d.redirect(w, r, loginPath(next))
		return
	}
	if r.Method == http.MethodHead {
		d.redirect(w, r, loginPath(next))
		return
	}
	address, cookie, err := d.SignIn.Begin(r.Context(), r.PathValue("provider"), next, nil)
	if err != nil {
		d.signInFailed(w, r, next, err)
		return
	}
	http.SetCookie(w, cookie)
	d.leave(w, r, address)
}

// leave sends the browser to an identity provider.
func (d *Dashboard) leave(w http.ResponseWriter, r *http.Request, address string) {
	d.secureHeaders(w.Header())
	w.Header().Set("Referrer-Policy", "no-referrer")
	if isHTMX(r) {
		w.Header().Set("HX-Redirect", address)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// finishSignIn completes a login with which a provider sends the browser back.
func (d *Dashboard) finishSignIn(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var caller workspace.Caller
	who, err := d.Auth.Identify(r, false)
	switch {
	case err == nil:
		caller = who.Caller
	case workspace.CodeOf(err) != workspace.CodeUnauthenticated:
		d.fail(w, r, err)
		return
	}
	result, err := d.SignIn.Finish(r, r.PathValue("provider"), caller)
	http.SetCookie(w, d.SignIn.ClearCookie())
	switch {
	case err != nil:
		d.signInFailed(w, r, "/", err)
		return
	case result.Linked:
		accesslog.SetUser(r.Context(), caller.UserID)
		d.redirect(w, r, notedAt("/settings/account", "linked", ""))
		return
	}
	accesslog.SetUser(r.Context(), result.Session.User.ID)
	http.SetCookie(w, d.Auth.Cookie(result.Session))
	d.redirect(w, r, localPath(result.Next))
}

// signInStatus are the statuses of the page about a failed login.
var signInStatus = map[signin.Reason]int{
	signin.Expired: http.StatusBadRequest, signin.Denied: http.StatusForbidden, signin.Unavailable: http.StatusBadGateway,
	signin.NotAllowed: http.StatusForbidden, signin.NoUsername: http.StatusForbidden, signin.NameTaken: http.StatusConflict,
	signin.Disabled: http.StatusForbidden, signin.NotSetUp: http.StatusForbidden, signin.NoRefresh: http.StatusBadGateway,
	signin.Ended: http.StatusForbidden, signin.Linked: http.StatusConflict, signin.OneAccount: http.StatusConflict, signin.OtherSession: http.StatusForbidden,
}

// signInFailed shows the login page with the reason of a failure.
func (d *Dashboard) signInFailed(w http.ResponseWriter, r *http.Request, next string, err error) {
	var f *signin.Failure
	if !errors.As(err, &f) {
		d.fail(w, r, err)
		return
	}
	e := d.loginEntry(r, next)
	e.Problem = d.signInProblem(r, f)
	p := d.newPage(r, nil, "login.title", e)
	p.Plain, p.Path = true, "/login" // a change of the language must not repeat the login
	d.render(w, r, signInStatus[f.Reason], "login", p)
}

// signInProblem is the text about a failed login with the provider that the path names.
func (d *Dashboard) signInProblem(r *http.Request, f *signin.Failure) string {
	l := d.set(r).lang
	switch f.Reason {
	case signin.NameTaken:
		if !d.Auth.PasswordLogin() {
			return l.T("signin.name_taken_no_password", f.Username)
		}
		return l.T("signin.name_taken", f.Username)
	case signin.Denied, signin.Unavailable, signin.NoUsername, signin.Ended, signin.Linked:
		name := r.PathValue("provider")
		for _, p := range d.providers() {
			if p.ID == name {
				name = p.Name
			}
		}
		return l.T("signin."+string(f.Reason), name)
	}
	return l.T("signin." + string(f.Reason))
}

// identityView is an identity on the account page.
type identityView struct {
	postgres.Identity
	Provider string // see providerName
}

// identitiesView is the list of identities on the account page.
type identitiesView struct {
	Linked   []identityView
	Others   []signin.Provider // that can be linked
	Password bool              // the user has one, so identities can be linked and unlinked
	Unlink   bool
}

func (d *Dashboard) readIdentities(r *http.Request, c workspace.Caller) (v identitiesView, err error) {
	if v.Password, err = d.Auth.HasPassword(r.Context(), c); err != nil {
		return v, err
	}
	list, err := d.Auth.Identities(r.Context(), c)
	if err != nil {
		return v, err
	}
	v.Unlink = v.Password && d.Auth.PasswordLogin()
	linked := map[string]bool{}
	for _, i := range list {
		linked[i.Issuer] = true
		v.Linked = append(v.Linked, identityView{i, d.providerName(i.Issuer)})
	}
	if v.Password {
		for _, p := range d.providers() {
			if !linked[p.Issuer] {
				v.Others = append(v.Others, p)
			}
		}
	}
	return v, nil
}

// linkForm is the form that links an identity of a provider.
func (d *Dashboard) linkForm(r *http.Request) (*form, error) {
	for _, p := range d.providers() {
		if p.ID == r.PathValue("provider") {
			f := d.form("link", r, nil)
			f.Action, f.Back, f.Provider = "/settings/identities/"+p.ID+"/link", "/settings/account", p.Name
			return f, nil
		}
	}
	return nil, workspace.NotFound("identity provider")
}

// unlinkForm is the form that removes an identity.
func (d *Dashboard) unlinkForm(r *http.Request, c workspace.Caller) (*form, error) {
	v, err := d.readIdentities(r, c)
	if err != nil {
		return nil, err
	}
	for _, i := range v.Linked {
		if i.ID == r.PathValue("identity") && v.Unlink {
			f := d.form("unlink", r, nil)
			f.Action, f.Back, f.Provider, f.Danger = "/settings/identities/"+i.ID+"/unlink", "/settings/account", i.Provider, true
			return f, nil
		}
	}
	return nil, workspace.NotFound("identity")
}

// verifyAgain verifies the password in the form's field current. It returns false after it
// has responded.
func (d *Dashboard) verifyAgain(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form) (proof string, ok bool) {
	current := r.PostFormValue("current")
	if current == "" {
		f.fail("current", "field.required")
		d.again(w, r, c, f)
		return "", false
	}
	proof, err := d.Auth.VerifyPassword(r.Context(), c, current)
	if err == nil {
		return proof, true
	}
	if d.passwordProblem(w, f, err) {
		d.again(w, r, c, f)
	} else {
		d.refuse(w, r, c, "", err)
	}
	return "", false
}

// passwordProblem reports in the form why its current password was not accepted; false if
// the error is another one.
func (d *Dashboard) passwordProblem(w http.ResponseWriter, f *form, err error) bool {
	switch workspace.CodeOf(err) {
	case workspace.CodeBadCredentials:
		f.fail("current", "account.password_wrong")
	case workspace.CodeLockedOut:
		retryAfter(w, err)
		f.Problem = f.lang.N("login.locked", max(1, lockedFor(err)))
	case workspace.CodeTooManyAttempts:
		retryAfter(w, err)
		f.Problem = f.lang.T("err.too_many_attempts")
	default:
		return false
	}
	return true
}

// leaving is a page that leads to an identity provider. A form cannot redirect there: the
// content policy limits where forms lead.
type leaving struct{ Provider, Address string }

func (d *Dashboard) link(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.linkForm(r)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	proof, ok := d.verifyAgain(w, r, c, f)
	if !ok {
		return
	}
	address, cookie, err := d.SignIn.Begin(r.Context(), r.PathValue("provider"), "/settings/account", &signin.Link{Caller: c, Proof: proof})
	var failure *signin.Failure
	if errors.As(err, &failure) {
		f.Problem = d.signInProblem(r, failure)
		d.again(w, r, c, f)
		return
	}
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	http.SetCookie(w, cookie)
	if isHTMX(r) {
		d.leave(w, r, address)
		return
	}
	p := d.newPage(r, &c, "", leaving{f.Provider, address})
	p.Title = f.Heading()
	d.render(w, r, http.StatusOK, "leaving", p)
}

func (d *Dashboard) unlink(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.unlinkForm(r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	proof, ok := d.verifyAgain(w, r, c, f)
	if !ok {
		return
	}
	if err := d.Auth.UnlinkIdentity(r.Context(), c, proof, r.PathValue("identity")); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	d.redirect(w, r, notedAt("/settings/account", "unlinked", ""))
}

// loginEntry is the login page without errors.
func (d *Dashboard) loginEntry(r *http.Request, next string) entry {
	return entry{Next: next, Providers: d.providers(), Password: d.Auth.PasswordLogin() || r.FormValue("with") == "password" || len(d.providers()) == 0}
}
