package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"codehub/api"
)

// AllFilter narrows AllWorkspaces. Empty fields narrow nothing.
type AllFilter struct {
	Query       string // part of the name, of the owner's name or the image, or of the id
	State       string // states, separated by commas
	Owner       string // a name or an id
	Image       string
	Deleted     bool
	UnusedSince time.Time
	Sort        string // name, owner, state, image, size, last_use or created
	Descending  bool
	Most        int // entries to read; 0: all
}

// AllWorkspaces lists the workspaces of all users; for administrators. The list has the number
// and size of all that match, also if Most cuts it.
func (c *Client) AllWorkspaces(ctx context.Context, f AllFilter) (api.AdminWorkspaceList, error) {
	q := url.Values{}
	set := func(name, v string) {
		if v != "" {
			q.Set(name, v)
		}
	}
	set("q", f.Query)
	set("state", f.State)
	set("owner", f.Owner)
	set("image", f.Image)
	set("sort", f.Sort)
	if f.Deleted {
		set("deleted", "true")
	}
	if f.Descending {
		set("order", "desc")
	}
	if !f.UnusedSince.IsZero() {
		set("unused_since", f.UnusedSince.UTC().Format(time.RFC3339))
	}
	out := api.AdminWorkspaceList{Workspaces: []api.AdminWorkspace{}}
	for {
		limit := 200
		if f.Most > 0 {
			limit = min(limit, f.Most-len(out.Workspaces))
		}
		q.Set("limit", strconv.Itoa(limit))
		var page api.AdminWorkspaceList
		if err := c.call(ctx, http.MethodGet, "/admin/workspaces", q, nil, &page); err != nil {
			return out, err
		}
		out.Workspaces = append(out.Workspaces, page.Workspaces...)
		out.Total, out.Bytes = page.Total, page.Bytes
		if page.NextCursor == "" || f.Most > 0 && len(out.Workspaces) >= f.Most {
			return out, nil
		}
		q.Set("cursor", page.NextCursor)
	}
}

func adminPath(id, action string) string { return "/admin" + path(id, action) }

func (c *Client) adminWorkspace(ctx context.Context, method, path string, q url.Values, in any) (api.AdminWorkspace, error) {
	return ask[api.AdminWorkspace](ctx, c, method, path, q, in)
}

// AnyWorkspace shows a workspace of any user; for administrators, as all methods below but those
// of notices and GetBanner.
func (c *Client) AnyWorkspace(ctx context.Context, id string) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodGet, adminPath(id, ""), nil, nil)
}

// Administer requests one of stop, archive, cancel, undelete and message.
func (c *Client) Administer(ctx context.Context, id, action string, in api.Administer) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodPost, adminPath(id, "/"+action), nil, in)
}

// AdminDelete deletes a workspace of any user.
func (c *Client) AdminDelete(ctx context.Context, id, message string) (api.AdminWorkspace, error) {
	var q url.Values
	if message != "" {
		q = url.Values{"message": {message}}
	}
	return c.adminWorkspace(ctx, http.MethodDelete, adminPath(id, ""), q, nil)
}

// AdminRecover recovers a workspace of any user.
func (c *Client) AdminRecover(ctx context.Context, id string, in api.AdminRecover) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodPost, adminPath(id, "/recover"), nil, in)
}

// AdminTimeouts changes the idle timeouts of a workspace of any user.
func (c *Client) AdminTimeouts(ctx context.Context, id string, in api.AdminTimeouts) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodPatch, adminPath(id, ""), nil, in)
}

// AdminSize changes the size of a workspace of any user, from its next start on.
func (c *Client) AdminSize(ctx context.Context, id string, in api.AdminSize) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodPost, adminPath(id, "/size"), nil, in)
}

// WithdrawHandOver removes the requested hand-over of a workspace.
func (c *Client) WithdrawHandOver(ctx context.Context, id string) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodDelete, adminPath(id, "/hand-over"), nil, nil)
}

// HandOverRequest returns the hand-over of the caller's workspace that waits for the caller.
func (c *Client) HandOverRequest(ctx context.Context, id string) (out api.HandOverRequest, err error) {
	err = c.call(ctx, http.MethodGet, path(id, "/hand-over"), nil, nil, &out)
	return out, err
}

// AnswerHandOver accepts or declines that hand-over.
func (c *Client) AnswerHandOver(ctx context.Context, id string, accept bool) error {
	return c.call(ctx, http.MethodPost, path(id, "/hand-over"), nil, api.AnswerHandOver{Accept: &accept}, nil)
}

// HandOver gives a workspace to another user. If its owner can log in, the owner has to accept it
// first.
func (c *Client) HandOver(ctx context.Context, id string, in api.HandOver) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodPost, adminPath(id, "/hand-over"), nil, in)
}

// AdminArchives lists the archives of a workspace of any user.
func (c *Client) AdminArchives(ctx context.Context, id string) ([]api.Archive, error) {
	return all(ctx, c, adminPath(id, "/archives"), func(page api.ArchiveList) ([]api.Archive, string) { return page.Archives, page.NextCursor })
}

// AdminBackups is Backups for a workspace of any user. The content of the backups is the owner's.
func (c *Client) AdminBackups(ctx context.Context, id string) ([]api.Backup, error) {
	return all(ctx, c, adminPath(id, "/backups"), func(page api.BackupList) ([]api.Backup, string) { return page.Backups, page.NextCursor })
}

// AdminRequestBackup is RequestBackup for a workspace of any user.
func (c *Client) AdminRequestBackup(ctx context.Context, id, note string) (api.Backup, error) {
	return ask[api.Backup](ctx, c, http.MethodPost, adminPath(id, "/backups"), nil, api.NewBackup{Note: note})
}

// AdminRestoreBackup is RestoreBackup for a workspace of any user.
func (c *Client) AdminRestoreBackup(ctx context.Context, id string, in api.RestoreBackup) (api.AdminWorkspace, error) {
	return c.adminWorkspace(ctx, http.MethodPost, adminPath(id, "/restore"), nil, in)
}

// AdminLogs is Logs for a workspace of any user.
func (c *Client) AdminLogs(ctx context.Context, id string, tail int, follow bool) (io.ReadCloser, error) {
	q := url.Values{"tail": {strconv.Itoa(tail)}}
	if follow {
		q.Set("follow", "true")
	}
	resp, err := c.request(ctx, http.MethodGet, adminPath(id, "/logs"), q, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// UsageReport returns what workspaces used, by day, in the format json or csv. Without an id
// it is of all workspaces; empty days are the server's defaults.
func (c *Client) UsageReport(ctx context.Context, id, from, through, format string) (io.ReadCloser, error) {
	q := url.Values{"format": {format}}
	if from != "" {
		q.Set("from", from)
	}
	if through != "" {
		q.Set("through", through)
	}
	at := "/admin/usage"
	if id != "" {
		at = adminPath(id, "/usage")
	}
	resp, err := c.request(ctx, http.MethodGet, at, q, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// AuditFilter narrows the audit log. Empty fields narrow nothing.
type AuditFilter struct {
	User, Action, Target string
	Since, Until         time.Time
}

func (f AuditFilter) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"user": f.User, "action": f.Action, "target": f.Target} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return q
}

// Audit returns the newest entries of the audit log, at most a number.
func (c *Client) Audit(ctx context.Context, f AuditFilter, most int) ([]api.AuditEntry, error) {
	list, q := []api.AuditEntry{}, f.query()
	for len(list) < most {
		q.Set("limit", strconv.Itoa(min(200, most-len(list))))
		var page api.AuditLog
		if err := c.call(ctx, http.MethodGet, "/audit", q, nil, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Entries...)
		if page.NextCursor == "" {
			break
		}
		q.Set("cursor", page.NextCursor)
	}
	return list, nil
}

// ExportAudit returns the audit log as JSON lines, the oldest first, which the caller closes, and
// the time before which its entries were added; zero: the server does not say.
func (c *Client) ExportAudit(ctx context.Context, f AuditFilter) (body io.ReadCloser, until time.Time, err error) {
	resp, err := c.request(ctx, http.MethodGet, "/audit/export", f.query(), nil)
	if err != nil {
		return nil, until, err
	}
	until, _ = time.Parse(time.RFC3339, resp.Header.Get(api.ExportedUntil))
	return resp.Body, until, nil
}

// DeleteAccount deletes a user. workspaces is delete, hand_over (to the user with the id to), or
// empty for a user without workspaces.
func (c *Client) DeleteAccount(ctx context.Context, id, workspaces, to string) error {
	q := url.Values{}
	if workspaces != "" {
		q.Set("workspaces", workspaces)
	}
	if to != "" {
		q.Set("to", to)
	}
	return c.call(ctx, http.MethodDelete, "/users/"+url.PathEscape(id), q, nil, nil)
}

// GetBanner returns the text that all users see.
func (c *Client) GetBanner(ctx context.Context) (api.Banner, error) {
	return ask[api.Banner](ctx, c, http.MethodGet, "/banner", nil, nil)
}

// SetBanner sets the text that all users see; an empty one removes it.
func (c *Client) SetBanner(ctx context.Context, message string) (api.Banner, error) {
	return ask[api.Banner](ctx, c, http.MethodPut, "/banner", nil, api.SetBanner{Message: message})
}

// Notices lists the caller's notices.
func (c *Client) Notices(ctx context.Context) ([]api.Notice, error) {
	var out api.NoticeList
	err := c.call(ctx, http.MethodGet, "/notices", nil, nil, &out)
	return out.Notices, err
}

// DismissNotice removes one of the caller's notices.
func (c *Client) DismissNotice(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/notices/"+url.PathEscape(id), nil, nil, nil)
}
