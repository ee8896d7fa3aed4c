package dashboard

import (
	"net/http"

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
		f.Problem = f.quotaText(kind, v)
	}
	return nil
}

// quotaText returns the text about a quota that is used up.
func (f *form) quotaText(kind string, q quotaView) string {
	return f.lang.T("quota."+kind, f.lang.Count(q.N), f.lang.Count(q.Max))
}

// quotaProblem is the text of CodeQuotaExceeded.
func (f *form) quotaProblem(e *workspace.Error) string {
	kind, _ := e.Details["limit_type"].(string)
	current, _ := e.Details["current"].(int)
	most, _ := e.Details["max"].(int)
	return f.quotaText(kind, quotaView{current, most})
}
