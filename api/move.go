package api

import "time"

// MoveSource is an installation from which workspaces can be moved.
type MoveSource struct {
	Installation string     `json:"installation"` // id
	OpenUntil    *time.Time `json:"open_until"`   // null: moves are not allowed
}

// MoveWorkspace is a workspace of any user, as a move sees it before it reads it.
type MoveWorkspace struct {
	ID               string    `json:"id"`
	OwnerID          string    `json:"owner_id"`
	Name             string    `json:"name"`
	ImageRef         string    `json:"image_ref"`
	State            string    `json:"state"`
	Phase            string    `json:"phase"`
	Operation        string    `json:"operation"`
	DesiredState     string    `json:"desired_state"`
	NextDesiredState *string   `json:"next_desired_state"`
	ErrorReason      *string   `json:"error_reason"`
	ErrorMessage     *string   `json:"error_message"`
	Progress         *Progress `json:"progress"`
	ArchiveSize      *int64    `json:"archive_size"`
	// Version identifies what would be moved now; null: the workspace is not archived, or
	// about to be restored.
	Version *string `json:"version"`
	// InBackup: the home is only in a backup. To archive it, the source unpacks it first.
	InBackup bool `json:"in_backup"`
}

// MoveWorkspaceList is one page of GET /admin/move/workspaces.
type MoveWorkspaceList struct {
	Workspaces []MoveWorkspace `json:"workspaces"`
	NextCursor string          `json:"next_cursor"`
}

// MoveRecord is what a move takes of a workspace. The values of its environment variables
// may be secrets.
type MoveRecord struct {
	ID                string            `json:"id"`
	OwnerID           string            `json:"owner_id"`
	Version           string            `json:"version"`
	Name              string            `json:"name"`
	Description       string            `json:"description"`
	Memo              string            `json:"memo"`
	ImageRef          string            `json:"image_ref"`
	Size              string            `json:"size"`
	Env               map[string]string `json:"env"`
	TimeZone          *string           `json:"time_zone"`
	StandbyTTLSeconds *int              `json:"standby_ttl_seconds"`
	ArchiveTTLSeconds *int              `json:"archive_ttl_seconds"`
	AwakeWhileWorking bool              `json:"awake_while_working"`
	LastAccessAt      *time.Time        `json:"last_access_at"`
	LastAccessKind    *string           `json:"last_access_kind"`
	CreatedAt         time.Time         `json:"created_at"`
	Archive           MoveArchive       `json:"archive"`
}

// MoveArchive is the archive of a MoveRecord.
type MoveArchive struct {
	Format         string `json:"format"`
	CodehubVersion string `json:"codehub_version"` // that made it
	Entries        int64  `json:"entries"`
	Bytes          int64  `json:"bytes"`
	Skipped        int64  `json:"skipped"`
	Size           int64  `json:"size"`   // as the database recorded it
	Digest         string `json:"digest"` // SHA-256 of home.tar.zst, as the database recorded it
}

// MoveUser is what a move takes of a user, besides what GET /users has.
type MoveUser struct {
	ID         string         `json:"id"`
	Identities []MoveIdentity `json:"identities"`
}

// MoveIdentity is a user's account at an identity provider.
type MoveIdentity struct {
	Issuer   string `json:"issuer"`
	Subject  string `json:"subject"`
	Username string `json:"username"` // the provider's, for display
}
