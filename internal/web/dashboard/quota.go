package dashboard

import (
	"context"
	"errors"
	"net/http"

	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
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
		v := bytesOf(e)
		return l.T("quota."+kind+v.Way, l.Bytes(v.Used), l.Bytes(v.Max))
	}
	current, _ := e.Details["current"].(int)
	most, _ := e.Details["max"].(int)
	return quotaText(l, kind, quotaView{current, most})
}

// bytesView is a limit of disk space that is reached. Way is the suffix of the text that tells the
// way out: empty for a start to free space, "_again" if there was one, and "_new" for what is no
// stopped workspace.
type bytesView struct {
	Used, Max int64
	Way       string
}

// MayFree reports whether the workspace may be started to free space.
func (v bytesView) MayFree() bool { return v.Way == "" }

// bytesOf reads a CodeQuotaExceeded about disk space.
func bytesOf(e *workspace.Error) (v bytesView) {
	v.Used, _ = e.Details["current"].(int64)
	v.Max, _ = e.Details["max"].(int64)
	switch may, offered := e.Details["free_space"].(bool); {
	case !offered && e.Details["limit_type"] == lifecycle.LimitBytes:
		v.Way = "_new"
	case offered && !may:
		v.Way = "_again"
	}
	return v
}

// overBytes returns the limit of bytes that prevents a start of the caller's workspace, or nil.
func (d *Dashboard) overBytes(ctx context.Context, c workspace.Caller, id workspace.ID) (*bytesView, error) {
	err := d.Store.MayRun(ctx, c, id)
	v := overBytes(err)
	if v != nil || workspace.CodeOf(err) == workspace.CodeLimitExceeded {
		err = nil
	}
	return v, err
}

// overBytes returns the limit of bytes for which MayRun returned err, or nil.
func overBytes(err error) *bytesView {
	var e *workspace.Error
	if !errors.As(err, &e) || e.Code != workspace.CodeQuotaExceeded || !inBytes(e) {
		return nil
	}
	v := bytesOf(e)
	return &v
}

// inBytes reports whether a CodeQuotaExceeded is about disk space.
func inBytes(e *workspace.Error) bool {
	_, ok := e.Details["current"].(int64)
	return ok
}
