package dashboard

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// tokensView is the page of API tokens.
type tokensView struct {
	Tokens []tokenView
	Quota  quotaView
	Paging paging
	OOB    bool
}

type tokenView struct {
	postgres.Token
	For     string // name of the only workspace that it is for; empty: all
	Expired bool
	Now     time.Time
}

// newToken is a created token, which is shown only once.
type newToken struct {
	Name, Plain string
	Example     string // an API call with it
}

// lifetimes are the choices for a token's lifetime, in days.
func lifetimes() []int { return []int{7, 30, 90, 365} }

func (d *Dashboard) readTokens(r *http.Request, c workspace.Caller) (tokensView, error) {
	cursor := pageParam(r, "cursor")
	rows, next, err := d.Auth.Tokens(r.Context(), c, postgres.Page{Limit: pageSize, Cursor: cursor})
	if err != nil {
		return tokensView{}, err
	}
	quotas, err := d.Store.Quotas(r.Context(), c)
	if err != nil {
		return tokensView{}, err
	}
	now := d.Now()
	v := tokensView{Quota: quotaView{quotas.Tokens, quotas.MaxTokens}, Paging: pagingOf("/settings/tokens", "cursor", cursor, next)}
	names := map[workspace.ID]string{}
	for _, t := range rows {
		if t.Workspace != "" && names[t.Workspace] == "" {
			names[t.Workspace] = string(t.Workspace)
			if ws, err := d.Store.Workspace(r.Context(), c, t.Workspace); err == nil {
				names[t.Workspace] = ws.Name
			}
		}
		v.Tokens = append(v.Tokens, tokenView{t, names[t.Workspace], t.ExpiresAt != nil && !t.ExpiresAt.After(now), now})
	}
	return v, nil
}

func (d *Dashboard) tokens(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v, err := d.readTokens(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "tokens.title", v)
	p.Nav = "tokens"
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "tokens", p)
}

func (d *Dashboard) createToken(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f := d.form("token", r, nil)
	f.line("name", workspace.MaxName, true)
	f.Value["expires"] = r.PostFormValue("expires")
	var expires *time.Time
	if s := f.Value["expires"]; s != "never" {
		days, err := strconv.Atoi(s)
		if err != nil || days < 1 || days > 3650 {
			f.fail("expires", "field.required")
		} else {
			t := d.Now().UTC().Add(time.Duration(days) * 24 * time.Hour)
			expires = &t
		}
	}
	limits, ok := f.tokenLimits()
	if err := d.showTokenChoices(r, c, f); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	if !ok || f.bad() {
		d.again(w, r, c, f)
		return
	}
	who, err := d.Auth.Identify(r, false)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	_, plain, err := d.Auth.CreateToken(r.Context(), who, f.Value["name"], expires, limits)
	if err != nil {
		d.refuseForm(w, r, c, f, err)
		return
	}
	made := newToken{Name: f.Value["name"], Plain: plain,
		Example: "curl -H '" + api.TokenHeader + ": " + plain + "' " + strings.TrimSuffix(d.URL.String(), "/") + "/api/v1/workspaces"}
	if !isHTMX(r) {
		d.render(w, r, http.StatusOK, "token", d.newPage(r, &c, "token.title", made))
		return
	}
	v, err := d.readTokens(r, c)
	if err != nil {
		// The token exists and must be shown; the list can wait for a reload.
		d.logFailure(r, err)
		d.fragments(w, r, http.StatusOK, part{"token-dialog", made})
		return
	}
	v.OOB = true
	d.fragments(w, r, http.StatusOK, part{"tokens", v}, part{"token-dialog", made})
}

// scopes are the choices for a token's scope.
func scopes() []workspace.Scope {
	return []workspace.Scope{workspace.ScopeRead, workspace.ScopeWorkspaces, workspace.ScopeAdmin}
}

// choice is a workspace to choose.
type choice struct{ ID, Name string }

// showTokenChoices fills in the workspaces for which a token can be made.
func (d *Dashboard) showTokenChoices(r *http.Request, c workspace.Caller, f *form) error {
	list, _, err := d.Store.ListWorkspaces(r.Context(), c, postgres.Filter{Recent: true, Limit: postgres.MaxList})
	for _, ws := range list {
		f.Choices = append(f.Choices, choice{string(ws.ID), ws.Name})
	}
	return err
}

// tokenLimits reads the scope and the workspace; false if they do not fit.
func (f *form) tokenLimits() (auth.TokenLimits, bool) {
	f.Value["scope"], f.Value["for"] = f.r.PostFormValue("scope"), f.r.PostFormValue("for")
	scope, ok := workspace.ParseScope(f.Value["scope"])
	if f.Value["scope"] == "" {
		scope, ok = workspace.ScopeAdmin, true
	}
	limits := auth.TokenLimits{Scope: scope, Workspace: workspace.ID(f.Value["for"])}
	switch {
	case !ok, limits.Workspace != "" && !workspace.ValidID(f.Value["for"]):
		f.fail("scope", "field.required")
	case limits.Workspace != "" && scope == workspace.ScopeAdmin:
		f.fail("for", "tokens.limit_needs_scope")
	}
	return limits, !f.bad()
}

func (d *Dashboard) tokenOf(r *http.Request, c workspace.Caller) (postgres.Token, error) {
	return d.Auth.Token(r.Context(), c, r.PathValue("token"))
}

func (d *Dashboard) revokeForm(r *http.Request, c workspace.Caller) (*form, error) {
	t, err := d.tokenOf(r, c)
	if err != nil {
		return nil, err
	}
	f := d.form("revoke", r, nil)
	f.Token, f.Back = &t, "/settings/tokens"
	f.Action = "/settings/tokens/" + t.ID + "/revoke"
	return f, nil
}

func (d *Dashboard) revokeToken(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	t, err := d.tokenOf(r, c)
	if err == nil {
		err = d.Auth.DeleteToken(r.Context(), c, t.ID)
	}
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		d.refuse(w, r, c, "", err)
		return
	}
	if !isHTMX(r) || asPage(r) {
		d.redirect(w, r, "/settings/tokens?note=token_revoked")
		return
	}
	v, err := d.readTokens(r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	v.OOB = true
	l := d.set(r).lang
	d.fragments(w, r, http.StatusOK, part{"tokens", v}, part{"close-dialog", nil},
		part{"toast-oob", &toast{Text: l.T("toast.token_revoked.unnamed")}})
}
