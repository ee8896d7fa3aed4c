package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/gitaccess"
	"codehub/internal/workspace"
)

// gitView is the list of Git connections on the account page.
type gitView struct {
	Connections []gitConnection
	Apps        []gitAppView
	Quota       quotaView
}

type gitConnection struct {
	api.GitConnection
	Title string // of the app; empty for a token
	Now   time.Time
}

func (d *Dashboard) readGit(r *http.Request, c workspace.Caller) (v gitView, err error) {
	list, err := d.Git.List(r.Context(), c)
	v.Quota = quotaView{len(list), postgres.MaxGitConnections}
	v.Apps = d.gitApps(list)
	for _, one := range list {
		v.Connections = append(v.Connections, gitConnection{one, d.gitAppTitle(one), d.Now()})
	}
	return v, err
}

// gitNew is the form with a token. It can come from the page of a workspace whose clone needs it.
const gitNew = "git-new"

func (d *Dashboard) gitForm(r *http.Request, c workspace.Caller) (f *form, from workspace.Workspace, err error) {
	f = d.form(gitNew, r, nil)
	f.Action, f.Back = "/settings/git", "/settings/account"
	f.Value["host"] = r.URL.Query().Get("host")
	f.GitApp = d.gitAppFor(f.Value["host"])
	if id := r.FormValue("workspace"); workspace.ValidID(id) {
		if from, err = d.Store.Workspace(r.Context(), c, workspace.ID(id)); err != nil {
			return nil, from, err
		}
		f.Value["workspace"], f.Back = id, setupPage(f.From, from.ID)
	}
	return f, from, nil
}

func (d *Dashboard) gitDialog(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, _, err := d.gitForm(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.showForm(w, r, c, http.StatusOK, f)
}

// connectGit stores the token of the form. A clone that has failed in the workspace that the form
// came from is tried again.
func (d *Dashboard) connectGit(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, from, err := d.gitForm(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	f.line("host", gitaccess.MaxHost, true)
	f.line("login", gitaccess.MaxLogin, true)
	token := r.PostFormValue("token")
	if token == "" {
		f.fail("token", "field.required")
	}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	_, err = d.Git.Connect(r.Context(), c, api.NewGitConnection{Host: f.Value["host"], Login: f.Value["login"], Token: token})
	var e *workspace.Error
	switch {
	case err == nil:
		if from.ID != "" && d.retry(r.Context(), from) == nil {
			d.redirect(w, r, f.Back)
			return
		}
		d.redirect(w, r, notedAt("/settings/account", "git_connected", ""))
		return
	case errors.As(err, &e) && e.Code == workspace.CodeQuotaExceeded:
		f.Problem = quotaProblem(f.lang, e)
	case errors.As(err, &e) && e.Code == workspace.CodeNotSupported:
		f.Problem = f.lang.T("git.no_key")
	case errors.As(err, &e) && e.Code == workspace.CodeInvalid:
		field, _ := e.Details["field"].(string)
		f.Errors[field] = f.lang.T("git.invalid." + field)
	default:
		d.fail(w, r, err)
		return
	}
	d.again(w, r, c, f)
}

func (d *Dashboard) disconnectGit(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	out, err := d.Git.Disconnect(r.Context(), c, r.PathValue("connection"))
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		d.refuse(w, r, c, "", err)
		return
	}
	note := "git_disconnected"
	if out.Revoked {
		note = "git_revoked"
	}
	d.redirect(w, r, notedAt("/settings/account", note, ""))
}

// setupPage is the address of the page that shows a workspace's setup, to which a form leads back. The
// workspace's own address would open the IDE before the setup has ended.
func setupPage(from string, id workspace.ID) string {
	if from == fromWait {
		return waitPath(id, entryPath(id, ""), false, 0)
	}
	return backTo(from, id)
}

// retry runs the failed steps of a workspace's setup again.
func (d *Dashboard) retry(ctx context.Context, ws workspace.Workspace) error {
	if ws.Phase != workspace.PhaseRunning || d.Setups == nil {
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if _, err := d.Setups.RetrySetup(ctx, ws.ID); err != nil && !errors.Is(err, attach.ErrSetupRuns) {
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace is not responding. Try again later.", Err: err}
	}
	return nil
}

// gitAsker is the server in Git's words about a login.
var gitAsker = regexp.MustCompile(`(?m)^fatal: .* (?:for|access) '(https?://[^/']+)`)

// connectsTo is the host for which a workspace's owner can add a connection, so that a step that
// failed succeeds; empty: it is none of the workspace's repositories. A workspace's own words alone
// do not decide which host is offered.
func connectsTo(w workspace.Workspace, st agent.StepStatus) string {
	if st.Kind != agent.KindClone || st.Reason != "login" || w.Project == nil {
		return ""
	}
	for _, repo := range w.Project.Repositories {
		u, err := url.Parse(repo.URL)
		if err != nil || repo.URL != st.Name || u.Scheme != "https" && u.Scheme != "http" {
			continue
		}
		host, err := gitaccess.ParseHost(u.Scheme + "://" + u.Host)
		if err != nil {
			return ""
		}
		if said := gitAsker.FindStringSubmatch(st.Error); said != nil {
			asker, err := url.Parse(said[1])
			if err != nil {
				return ""
			}
			if other, err := gitaccess.ParseHost(asker.Scheme + "://" + asker.Host); err != nil || other != host {
				return "" // of a submodule, or after a redirect
			}
		}
		return host
	}
	return ""
}
