package dashboard

import (
	"net/http"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// accountView is the account page.
type accountView struct {
	Sessions []sessionView
	Paging   paging
	Keys     keysView
	Git      gitView
	Identity identitiesView
	Passkeys passkeysView
	Dotfiles api.Dotfiles
	OOB      bool

	GitIdentity gitIdentityView
}

// Others reports whether there are sessions besides the current one.
func (v accountView) Others() bool { return len(v.Sessions) > 1 || v.Paging != paging{} }

type sessionView struct {
	auth.OpenSession
	Device   string
	Provider string // with which the session was begun; empty: with a password
	Now      time.Time
}

func (d *Dashboard) readAccount(r *http.Request, c workspace.Caller) (v accountView, err error) {
	cursor := pageParam(r, "cursor")
	list, next, err := d.Auth.Sessions(r.Context(), c, postgres.Page{Limit: pageSize, Cursor: cursor})
	if err != nil {
		return v, err
	}
	v.Paging = pagingOf("/settings/account", "cursor", cursor, next)
	l := d.set(r).lang
	for _, s := range list {
		v.Sessions = append(v.Sessions, sessionView{s, deviceOf(s.UserAgent, l), d.providerName(s.Issuer), d.Now()})
	}
	if v.Identity, err = d.readIdentities(r, c); err != nil {
		return v, err
	}
	if v.Passkeys, err = d.readPasskeys(r, c, v.Identity.Password); err != nil {
		return v, err
	}
	if v.Git, err = d.readGit(r, c); err != nil {
		return v, err
	}
	if v.Dotfiles, err = d.Store.Dotfiles(r.Context(), c); err != nil {
		return v, err
	}
	if v.GitIdentity, err = d.readGitIdentity(r, c); err != nil {
		return v, err
	}
	v.Keys, err = d.readKeys(r, c)
	return v, err
}

func (d *Dashboard) account(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v, err := d.readAccount(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "account.title", v)
	p.Nav = "account"
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "account", p)
}

// changePassword replaces the user's password and ends all their sessions; the browser gets a
// new one.
func (d *Dashboard) changePassword(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f := d.form("change-password", r, nil)
	current := r.PostFormValue("current")
	if current == "" {
		f.fail("current", "field.required")
	}
	password := f.newPassword()
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	session, err := d.Auth.ChangePassword(r.Context(), c, current, password, auth.ClientOf(r))
	if workspace.CodeOf(err) == workspace.CodeInvalid {
		f.fail("password", "account.password_refused")
	} else {
		d.passwordProblem(w, f, err)
	}
	switch {
	case f.bad():
		d.again(w, r, c, f)
		return
	case err != nil:
		d.refuse(w, r, c, "", err)
		return
	}
	http.SetCookie(w, d.Auth.Cookie(session))
	d.redirect(w, r, notedAt("/settings/account", "password", ""))
}

func (d *Dashboard) endSession(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	err := d.Auth.EndSession(r.Context(), c, r.PathValue("session"))
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		d.refuse(w, r, c, "", err)
		return
	}
	d.sessionsEnded(w, r, c, "session_ended")
}

func (d *Dashboard) endOtherSessions(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if _, err := d.Auth.EndOtherSessions(r.Context(), c); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	d.sessionsEnded(w, r, c, "sessions_ended")
}

func (d *Dashboard) sessionsEnded(w http.ResponseWriter, r *http.Request, c workspace.Caller, note string) {
	if !isHTMX(r) {
		d.redirect(w, r, notedAt("/settings/account", note, ""))
		return
	}
	v, err := d.readAccount(r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	v.OOB = true
	d.fragments(w, r, http.StatusOK, part{"sessions", v}, part{"toast-oob", &toast{Text: d.set(r).lang.T("toast." + note + ".unnamed")}})
}

// Browsers and systems by what their User-Agent contains. The first match counts, since most
// User-Agents also name other browsers.
var (
	browsers = [][2]string{{"Edg", "Edge"}, {"OPR/", "Opera"}, {"SamsungBrowser", "Samsung Internet"}, {"Firefox", "Firefox"}, {"FxiOS", "Firefox"},
		{"CriOS", "Chrome"}, {"Chrome", "Chrome"}, {"Safari/", "Safari"}, {"codehub", "codehub"}, {"curl/", "curl"}, {"Go-http-client", "codehub"}}
	systems = [][2]string{{"Windows", "Windows"}, {"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"CrOS", "ChromeOS"},
		{"Mac OS X", "macOS"}, {"Linux", "Linux"}}
)

// deviceOf names the device of a session from its User-Agent.
func deviceOf(agent string, l *catalogue.Language) string {
	find := func(known [][2]string) string {
		for _, k := range known {
			if strings.Contains(agent, k[0]) {
				return k[1]
			}
		}
		return ""
	}
	browser, system := find(browsers), find(systems)
	switch {
	case browser != "" && system != "":
		return l.T("sessions.device", browser, system)
	case browser+system != "":
		return browser + system
	}
	return l.T("sessions.unknown")
}
