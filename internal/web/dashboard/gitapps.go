package dashboard

import (
	"errors"
	"net/http"
	"strings"

	"codehub/api"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/gitapps"
	"codehub/internal/workspace"
)

// gitAppView is an app with which the user can connect.
type gitAppView struct {
	gitapps.App
	Again bool // there is a connection, which the provider does not accept any more
}

// gitAppRoutes registers the connections by OAuth2 apps. The provider sends the browser back by a
// GET, which connects nothing that the session has not begun by a POST.
func (d *Dashboard) gitAppRoutes(loggedIn func(pattern string, h callerHandler)) {
	if d.GitApps == nil {
		return
	}
	loggedIn("POST /settings/git/{app}/connect", d.connectGitApp)
	loggedIn("GET /settings/git/{app}/callback", d.connectedGitApp)
}

// gitApps lists the apps without a connection that works.
func (d *Dashboard) gitApps(connections []api.GitConnection) (list []gitAppView) {
	if d.GitApps == nil {
		return nil
	}
	state := map[string]string{}
	for _, c := range connections {
		if c.Kind == api.GitOAuth {
			state[c.Provider] = api.GitOAuth
			if c.Error == api.GitRevoked {
				state[c.Provider] = c.Error
			}
		}
	}
	for _, app := range d.GitApps.Apps() {
		if state[app.ID] != api.GitOAuth {
			list = append(list, gitAppView{app, state[app.ID] == api.GitRevoked})
		}
	}
	return list
}

// gitAppFor is the app whose connections are for a host; nil: there is none.
func (d *Dashboard) gitAppFor(host string) *gitapps.App {
	host, err := gitaccess.ParseHost(host)
	if err != nil || d.GitApps == nil {
		return nil
	}
	return d.GitApps.For(host)
}

// gitAppTitle is the title of the app of a connection; empty for a token.
func (d *Dashboard) gitAppTitle(c api.GitConnection) string {
	if c.Kind == api.GitOAuth && d.GitApps != nil {
		return d.GitApps.Title(c.Provider)
	}
	return c.Provider
}

// connectGitApp sends the browser to a provider. The form can come from the page of a workspace whose
// clone needs the connection.
func (d *Dashboard) connectGitApp(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id := r.PathValue("app")
	purpose := ""
	if from := r.PostFormValue("workspace"); from != "" {
		purpose = from + " " + fromOf(r)
	}
	address, cookie, err := d.GitApps.Begin(c, id, purpose)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	http.SetCookie(w, cookie)
	if isHTMX(r) {
		d.leave(w, r, address)
		return
	}
	title := d.GitApps.Title(id)
	p := d.newPage(r, &c, "", leaving{title, address})
	p.Title = p.Lang.T("gitapps.connect", title)
	d.render(w, r, http.StatusOK, "leaving", p)
}

// gitAppStatus are the statuses of the page about a connection that was not made.
var gitAppStatus = map[gitapps.Reason]int{
	gitapps.Expired: http.StatusBadRequest, gitapps.Denied: http.StatusForbidden, gitapps.Unavailable: http.StatusBadGateway, gitapps.Misconfigured: http.StatusBadGateway,
}

// connectedGitApp completes a connection with which a provider sends the browser back.
func (d *Dashboard) connectedGitApp(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id := r.PathValue("app")
	_, purpose, err := d.GitApps.Finish(r, c, id)
	workspaceID, from, _ := strings.Cut(purpose, " ")
	http.SetCookie(w, d.GitApps.ClearCookie())
	var f *gitapps.Failure
	switch {
	case err == nil && workspace.ValidID(workspaceID):
		// The setup that waits for the connection is tried again.
		ws, err := d.Store.Workspace(r.Context(), c, workspace.ID(workspaceID))
		if err == nil {
			err = d.retry(r.Context(), ws)
		}
		if err == nil {
			d.redirect(w, r, setupPage(from, ws.ID))
			return
		}
		fallthrough
	case err == nil:
		d.redirect(w, r, notedAt("/settings/account", "git_app_connected", ""))
		return
	case !errors.As(err, &f):
		d.fail(w, r, err)
		return
	}
	v, err := d.readAccount(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "account.title", v)
	p.Nav, p.Path = "account", "/settings/account" // a change of the language must not repeat the connection
	p.Toast = &toast{Text: p.Lang.T("gitapps."+string(f.Reason), d.GitApps.Title(id)), Error: true}
	d.render(w, r, gitAppStatus[f.Reason], "account", p)
}
