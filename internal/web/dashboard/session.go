package dashboard

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"codehub/internal/users/auth"
	"codehub/internal/users/signin"
	"codehub/internal/web/accesslog"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// Cookies with the browser's preferences. They hold no secret.
const (
	themeCookie    = "codehub_theme"
	languageCookie = "codehub_lang"
)

// CookieNames lists the cookies of the pages. Like the session's, the proxy does not pass them
// to workspaces.
func CookieNames() []string { return []string{themeCookie, languageCookie} }

// entry is the login or setup page.
type entry struct {
	Next     string
	Username string
	Code     string
	Errors   map[string]string
	Problem  string
	// Of the login page: the identity providers, and whether there is a form for a password.
	Providers []signin.Provider
	Password  bool
	// Once reports that the password of the first account opens no later session.
	Once bool
}

func (d *Dashboard) loginPage(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.URL.Query().Get("next"))
	if _, err := d.Auth.Identify(r, false); err == nil {
		d.redirect(w, r, next)
		return
	}
	if needed, err := d.Auth.SetupNeeded(r.Context()); err != nil {
		d.fail(w, r, err)
		return
	} else if needed {
		d.redirect(w, r, "/setup")
		return
	}
	d.showEntry(w, r, http.StatusOK, "login", d.loginEntry(r, next))
}

func (d *Dashboard) showEntry(w http.ResponseWriter, r *http.Request, status int, name string, e entry) {
	p := d.newPage(r, nil, name+".title", e)
	p.Plain = true
	if r.Method == http.MethodPost {
		p.Path = "/" + name
	}
	d.render(w, r, status, name, p)
}

func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	e := d.loginEntry(r, localPath(r.PostFormValue("next")))
	e.Username, e.Errors, e.Password = strings.TrimSpace(r.PostFormValue("username")), map[string]string{}, true
	l := d.set(r).lang
	password := r.PostFormValue("password")
	if e.Username == "" || password == "" {
		e.Problem = l.T("login.missing")
		d.showEntry(w, r, http.StatusUnprocessableEntity, "login", e)
		return
	}
	entry, err := d.Auth.BeginLogin(r.Context(), e.Username, password, auth.ClientOf(r))
	if err != nil {
		e.Problem = d.entryProblem(r, err)
		retryAfter(w, err)
		d.showEntry(w, r, statusOf(err), "login", e)
		return
	}
	d.entered(w, r, entry, e.Next)
}

// entryProblem returns the message for a failed login or setup.
func (d *Dashboard) entryProblem(r *http.Request, err error) string {
	l := d.set(r).lang
	var e *workspace.Error
	if errors.As(err, &e) {
		switch e.Code {
		case workspace.CodeLockedOut:
			return l.N("login.locked", max(1, lockedFor(err)))
		case workspace.CodeBadCredentials, workspace.CodeUnauthenticated:
			if !d.Auth.PasswordLogin() {
				return l.T("login.no_passwords")
			}
			return l.T("login.wrong")
		case workspace.CodeForbidden:
			return l.T("login.disabled")
		case workspace.CodeSuspended:
			return l.T("login.suspended")
		case workspace.CodeTooManyAttempts:
			return l.T("login.busy")
		case workspace.CodeUnavailable:
			return l.T("err.unavailable")
		case workspace.CodeInvalid, workspace.CodeNameTaken:
			return l.T("setup.refused")
		}
	}
	d.logFailure(r, err)
	return l.T("err.internal")
}

// retryAfter sets the header Retry-After from a lockout or a full queue.
func retryAfter(w http.ResponseWriter, err error) {
	if n := secondsOf(err); n > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(n))
	}
}

// lockedFor returns the remaining seconds of the lockout in err.
func lockedFor(err error) int {
	if workspace.CodeOf(err) != workspace.CodeLockedOut {
		return 0
	}
	return secondsOf(err)
}

// secondsOf returns the seconds after which err says to try again; 0 if it does not.
func secondsOf(err error) int {
	var e *workspace.Error
	if !errors.As(err, &e) {
		return 0
	}
	n, _ := e.Details["retry_after_seconds"].(int)
	return n
}

// logoutPage asks before it logs the caller out, for links such as the IDE's.
func (d *Dashboard) logoutPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	p := d.newPage(r, &c, "logout.title", nil)
	p.Plain = true
	d.render(w, r, http.StatusOK, "logout", p)
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	who, err := d.Auth.Identify(r, false)
	if err == nil {
		accesslog.SetUser(r.Context(), who.Caller.UserID)
		err = d.Auth.Logout(r.Context(), who.Caller)
	}
	if err != nil && workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		d.fail(w, r, err)
		return
	}
	if err := d.Auth.CancelLogin(r); err != nil {
		d.fail(w, r, err)
		return
	}
	http.SetCookie(w, d.Auth.ClearCookie())
	http.SetCookie(w, d.Auth.PendingCookie(""))
	d.redirect(w, r, "/login")
}

func (d *Dashboard) setupPage(w http.ResponseWriter, r *http.Request) {
	needed, err := d.Auth.SetupNeeded(r.Context())
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if !needed {
		d.redirect(w, r, "/login")
		return
	}
	// The address that the server prints has the code, which no other request may show.
	// "no-referrer" would also take the form's Origin, without which it may be refused.
	w.Header().Set("Referrer-Policy", "strict-origin")
	code := strings.TrimSpace(r.URL.Query().Get("code"))
	if len(code) > 64 {
		code = ""
	}
	d.showEntry(w, r, http.StatusOK, "setup", entry{Code: code, Username: "admin", Providers: d.providers(), Once: !d.Auth.PasswordLogin()})
}

func (d *Dashboard) setup(w http.ResponseWriter, r *http.Request) {
	l := d.set(r).lang
	e := entry{
		Code: strings.TrimSpace(r.PostFormValue("code")), Username: strings.TrimSpace(r.PostFormValue("username")),
		Errors: map[string]string{}, Providers: d.providers(), Once: !d.Auth.PasswordLogin(),
	}
	password := r.PostFormValue("password")
	for field, value := range map[string]string{"code": e.Code, "username": e.Username, "password": password} {
		if value == "" {
			e.Errors[field] = l.T("field.required")
		}
	}
	switch {
	case password == "":
	case auth.ShortPassword(password):
		e.Errors["password"] = l.T("setup.password_short", auth.MinPassword)
	case password != r.PostFormValue("password2"):
		e.Errors["password2"] = l.T("setup.password_mismatch")
	}
	if len(e.Errors) > 0 {
		d.showEntry(w, r, http.StatusUnprocessableEntity, "setup", e)
		return
	}
	entered, err := d.Auth.Setup(r.Context(), e.Code, e.Username, password, auth.ClientOf(r))
	if err != nil {
		if workspace.CodeOf(err) == workspace.CodeForbidden {
			// The code is wrong, or another user completed the setup first.
			if needed, err := d.Auth.SetupNeeded(r.Context()); err == nil && !needed {
				d.redirect(w, r, "/login")
				return
			}
			e.Errors["code"] = l.T("setup.code_wrong")
		} else {
			e.Problem = d.entryProblem(r, err)
		}
		retryAfter(w, err)
		d.showEntry(w, r, statusOf(err), "setup", e)
		return
	}
	d.entered(w, r, entered, "/")
}

func (d *Dashboard) setTheme(w http.ResponseWriter, r *http.Request) {
	theme := r.PostFormValue("theme")
	if !isTheme(theme) {
		theme = ""
	}
	http.SetCookie(w, preference(themeCookie, theme))
	d.preferred(w, r, false)
}

func (d *Dashboard) setLanguage(w http.ResponseWriter, r *http.Request) {
	code := r.PostFormValue("language")
	if _, ok := catalogue.ByCode(code); !ok {
		code = ""
	}
	http.SetCookie(w, preference(languageCookie, code))
	d.preferred(w, r, true)
}

// preferenceSeconds is how long a browser keeps a preference.
const preferenceSeconds = 365 * 24 * 3600

// preference returns the cookie that keeps a preference for a year; an empty value removes it.
// The IDE's page reads the theme (internal/web/proxy/ide.js).
func preference(name, value string) *http.Cookie {
	c := &http.Cookie{Name: name, Value: value, Path: "/", HttpOnly: name != themeCookie, SameSite: http.SameSiteLaxMode, MaxAge: preferenceSeconds}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// isTheme reports whether a theme was chosen, which comes before the system's.
func isTheme(theme string) bool { return theme == "light" || theme == "dark" }

func (d *Dashboard) preferred(w http.ResponseWriter, r *http.Request, reload bool) {
	if isHTMX(r) && !reload {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	d.redirect(w, r, localRedirect(r.PostFormValue("next")))
}
