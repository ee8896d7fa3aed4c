package dashboard

import (
	"errors"
	"net/http"

	"codehub/internal/dashboard/catalogue"
	"codehub/internal/workspace"
)

// quotaView is how many of something a user has, and may have.
type quotaView struct{ N, Max int }

// Near reports whether the page shows the quota: a fifth or less is left.
func (q quotaView) Near() bool { return q.Max > 0 && 5*q.N >= 4*q.Max }

func (q quotaView) full() bool { return q.Max > 0 && q.N >= q.Max }

// showQuota shows in the form of a new workspace, token or SSH key that the user's quota is used
// up.
func (d *Dashboard) showQuota(r *http.Request, c workspace.Caller, f *form) error {
	q, err := d.Store.Quotas(r.Context(), c)
	if err != nil {
		return err
	}
	kind, v := "workspaces", quotaView{q.Workspaces, q.MaxWorkspaces}
	switch f.Name {
	case "token":
		kind, v = "tokens", quotaView{q.Tokens, q.MaxTokens}
	case "ssh-key":
		kind, v = "ssh_keys", quotaView{q.SSHKeys, q.MaxSSHKeys}
	}
	if v.full() {
		f.Problem = quotaText(f.lang, kind, v)
	}
	return nil
}

// quotaText returns the text about a quota that is used up.
func quotaText(l *catalogue.Language, kind string, q quotaView) string {
	return l.T("quota."+kind, l.Count(q.N), l.Count(q.Max))
}

// quotaProblem is the text of CodeQuotaExceeded.
func quotaProblem(l *catalogue.Language, e *workspace.Error) string {
	kind, _ := e.Details["limit_type"].(string)
	if inBytes(e) {
		used, _ := e.Details["current"].(int64)
		most, _ := e.Details["max"].(int64)
		if may, refused := e.Details["free_space"].(bool); refused && !may {
			kind = "home_again"
		}
		return l.T("quota."+kind, l.Bytes(used), l.Bytes(most))
	}
	current, _ := e.Details["current"].(int)
	most, _ := e.Details["max"].(int)
	return quotaText(l, kind, quotaView{current, most})
}

// bytesView is how much the homes and archives of a user use, and may use.
type bytesView struct{ Used, Max int64 }

// overBytes returns the limit of bytes for which MayRun returned err, or nil.
func overBytes(err error) *bytesView {
	var e *workspace.Error
	if !errors.As(err, &e) || e.Code != workspace.CodeQuotaExceeded || !inBytes(e) {
		return nil
	}
	used, _ := e.Details["current"].(int64)
	most, _ := e.Details["max"].(int64)
	return &bytesView{used, most}
}

// inBytes reports whether a CodeQuotaExceeded is about disk space.
func inBytes(e *workspace.Error) bool {
	_, ok := e.Details["current"].(int64)
	return ok
}
