package api

import "time"

// AdminWorkspace is a workspace as administrators see it: without its owner's notes and the
// values of its environment variables.
type AdminWorkspace struct {
	Workspace     Workspace `json:"workspace"`
	OwnerID       string    `json:"owner_id"`
	Owner         string    `json:"owner"`
	OwnerDisabled bool      `json:"owner_disabled"`
	HomeBytes     *int64    `json:"home_bytes"`     // as last measured; null: not measured yet
	ArchivesBytes *int64    `json:"archives_bytes"` // of all archives; null: not measured yet
	Used          Used      `json:"used"`
	// HandOver is a hand-over that the owner has not accepted; null: none.
	HandOver *HandOverRequest `json:"hand_over"`
}

// HandOverRequest is a hand-over that an administrator has requested of the owner.
type HandOverRequest struct {
	To          string     `json:"to"`   // username of the new owner
	Name        string     `json:"name"` // of the workspace there; empty: unchanged
	By          string     `json:"by"`   // the administrator
	Message     string     `json:"message"`
	RequestedAt time.Time  `json:"requested_at"`
	DeclinedAt  *time.Time `json:"declined_at"`
}

// AnswerHandOver is the body of POST /workspaces/{id}/hand-over.
type AnswerHandOver struct {
	Accept *bool `json:"accept"` // false declines
}

// Used is what a workspace used of the server in some days.
type Used struct {
	Days           int     `json:"days"` // today included
	RunningHours   float64 `json:"running_hours"`
	CPUHours       float64 `json:"cpu_hours"`
	MemoryGiBHours float64 `json:"memory_gib_hours"`
}

// AdminWorkspaceList is the answer of GET /admin/workspaces.
type AdminWorkspaceList struct {
	Workspaces []AdminWorkspace `json:"workspaces"`
	Total      int              `json:"total"` // on all pages
	Bytes      int64            `json:"bytes"` // of all pages
	NextCursor string           `json:"next_cursor"`
}

// Administer is the body of what administrators request of a workspace.
type Administer struct {
	Message string `json:"message,omitempty"` // for the owner
	Force   bool   `json:"force,omitempty"`   // of a stop: removes the container at once
}

// AdminRecover is the body of POST /admin/workspaces/{id}/recover.
type AdminRecover struct {
	Action      string `json:"action,omitempty"` // as in Recover
	ArchiveOpID string `json:"archive_op_id,omitempty"`
	Confirm     string `json:"confirm,omitempty"`
	Message     string `json:"message,omitempty"` // for the owner
}

// AdminTimeouts is the body of PATCH /admin/workspaces/{id}; absent fields are unchanged.
type AdminTimeouts struct {
	StandbyTTLSeconds Nullable[int] `json:"standby_ttl_seconds,omitzero"`
	ArchiveTTLSeconds Nullable[int] `json:"archive_ttl_seconds,omitzero"`
	Message           string        `json:"message,omitempty"` // for the owner
}

// AdminSize is the body of POST /admin/workspaces/{id}/size.
type AdminSize struct {
	Size    string `json:"size"`              // one of GET /sizes; default is the default one
	Message string `json:"message,omitempty"` // for the owner
}

// HandOver is the body of POST /admin/workspaces/{id}/hand-over.
type HandOver struct {
	To      string `json:"to"`                // the id of the new owner
	Name    string `json:"name,omitempty"`    // of the workspace there; empty: unchanged
	Message string `json:"message,omitempty"` // for both owners
}

// UsageDay is what a workspace used on one day.
type UsageDay struct {
	Day            string  `json:"day"` // like 2026-12-24, UTC
	WorkspaceID    string  `json:"workspace_id"`
	Workspace      string  `json:"workspace"` // its name now
	OwnerID        string  `json:"owner_id"`  // on that day
	Owner          string  `json:"owner"`
	RunningHours   float64 `json:"running_hours"`
	CPUHours       float64 `json:"cpu_hours"`
	MemoryGiBHours float64 `json:"memory_gib_hours"`
	HomeBytes      int64   `json:"home_bytes"`
	ArchivesBytes  int64   `json:"archives_bytes"`
}

// UsageReport is the answer of GET /admin/usage.
type UsageReport struct {
	From    string     `json:"from"`    // the first day
	Through string     `json:"through"` // the last day
	Days    []UsageDay `json:"days"`
}

// AuditEntry is an entry of the audit log.
type AuditEntry struct {
	ID         int64          `json:"id"`
	At         time.Time      `json:"at"`
	UserID     string         `json:"user_id"` // empty for the server itself
	Username   string         `json:"username"`
	TokenID    string         `json:"token_id"` // the API token that was used; empty: none
	Address    string         `json:"address"`  // of the client; empty: not known
	Action     string         `json:"action"`
	Target     string         `json:"target"`      // an id, or empty
	TargetName string         `json:"target_name"` // empty: not known
	Details    map[string]any `json:"details"`
}

// ExportedUntil is the header of the answer of GET /audit/export with the time before which its
// entries were added. An export since then has the next ones.
const ExportedUntil = "Codehub-Exported-Until"

// AuditLog is the answer of GET /audit.
type AuditLog struct {
	Entries    []AuditEntry `json:"entries"`
	NextCursor string       `json:"next_cursor"`
}

// Banner is the text that all users see on every page.
type Banner struct {
	Message string     `json:"message"` // empty: there is none
	SetBy   string     `json:"set_by"`
	SetAt   *time.Time `json:"set_at"`
}

// SetBanner is the body of PUT /banner.
type SetBanner struct {
	Message string `json:"message"` // empty removes the banner
}

// Notice tells a user what an administrator did, or that a workspace is shared with the user.
type Notice struct {
	ID            string    `json:"id"`
	Kind          string    `json:"kind"` // message, stop, archive, cancel, recover, delete, undelete, timeouts, size, handed_over, received, shared or hand_over_request
	WorkspaceID   string    `json:"workspace_id"`
	WorkspaceName string    `json:"workspace_name"`
	By            string    `json:"by"`    // the administrator; of a share, the owner
	Other         string    `json:"other"` // the other owner of a workspace that was handed over
	Message       string    `json:"message"`
	CreatedAt     time.Time `json:"created_at"`
}

// NoticeList is the answer of GET /notices.
type NoticeList struct {
	Notices []Notice `json:"notices"`
}
