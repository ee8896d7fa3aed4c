// Package api holds the JSON of codehub's HTTP API (docs/api.md), for the
// server and for clients alike. It imports the standard library only.
package api

import "time"

// Workspace is a workspace as the API shows it to its owner.
type Workspace struct {
	ID               string  `json:"id"`
	Name             string  `json:"name"`
	Description      string  `json:"description"`
	Memo             string  `json:"memo"`
	ImageRef         string  `json:"image_ref"`          // of the next start
	RunningImageRef  *string `json:"running_image_ref"`  // of the container
	PreviousImageRef *string `json:"previous_image_ref"` // before the last change
	// ImageDigest is the digest of the image with which the workspace was last started, and
	// ImageID its ID in Docker; both hold for ImageRef alone.
	ImageDigest *string `json:"image_digest"`
	ImageID     *string `json:"image_id"`
	// ImageNotice is why that image is not the one that was asked for: "replaced",
	// "not_pulled" or "interim".
	ImageNotice          *string `json:"image_notice"`
	ImageUpdateAvailable bool    `json:"image_update_available"` // ImageRef names another image now
	ImageUpdateRequested bool    `json:"image_update_requested"` // it takes effect at the next start
	Size                 string  `json:"size"`                   // name of the size of the next start; "default" is the default one
	SizeWaits            bool    `json:"size_waits"`             // the container was created with another one
	// HomeBytes is the size of the home as last measured (null: it is not), HomeLimitBytes what it
	// may use (0: no limit). If HomeLimitEnforced, nothing can be written beyond that; otherwise a
	// workspace over its limit does not start.
	HomeBytes         *int64 `json:"home_bytes"`
	HomeLimitBytes    int64  `json:"home_limit_bytes"`
	HomeLimitEnforced bool   `json:"home_limit_enforced"`
	// Env has the environment variables of the next start. It is absent from lists and
	// events: the values may be secrets.
	Env      map[string]string `json:"env,omitzero"`
	EnvWaits bool              `json:"env_waits"` // the container was created with others
	TimeZone *string           `json:"time_zone"`
	// Repositories are those that the workspace was created with, or that its template gives since.
	Repositories     []Repository  `json:"repositories"`
	Scripts          *Scripts      `json:"scripts"`    // that the setup runs; null: none
	Extensions       []string      `json:"extensions"` // of the IDE, which the setup installs
	Ports            []ProjectPort `json:"ports"`
	RequiredSecrets  []string      `json:"required_secrets"` // variables that secrets should set
	State            string        `json:"state"`            // for display, such as stopping
	Phase            string        `json:"phase"`
	Operation        string        `json:"operation"`
	Progress         *Progress     `json:"progress"`
	DesiredState     string        `json:"desired_state"`
	DesiredCause     *string       `json:"desired_cause"`
	NextDesiredState *string       `json:"next_desired_state"`
	// Devcontainer is the description of a repository that the next start uses; null: none.
	Devcontainer *WorkspaceDevcontainer `json:"devcontainer"`
	// PendingRequest was accepted and is not carried out yet: "force_stop",
	// "cancel", "recover", "set_aside" or "restore".
	PendingRequest *string `json:"pending_request"`
	URL            string  `json:"url"`
	ArchiveKey     *string `json:"archive_key"`
	// RestoreFrom is the id of the backup that is to replace the home, which is archived first.
	RestoreFrom *string `json:"restore_from"`
	// RestoredFrom is the id of the backup that the home was restored from, until it is archived.
	RestoredFrom   *string              `json:"restored_from"`
	ArchiveSize    *int64               `json:"archive_size"`
	Conditions     map[string]Condition `json:"conditions"`
	ErrorReason    *string              `json:"error_reason"`
	ErrorMessage   *string              `json:"error_message"`
	ErrorCount     int                  `json:"error_count"`
	LastAccessAt   *time.Time           `json:"last_access_at"`
	LastAccessKind *string              `json:"last_access_kind"`
	StopsAt        *time.Time           `json:"stops_at"`
	StopReason     *string              `json:"stop_reason"`
	KeepAwakeUntil *time.Time           `json:"keep_awake_until"`
	// AwakeWhileWorking: processes that are at work count as activity.
	AwakeWhileWorking bool      `json:"awake_while_working"`
	PhaseChangedAt    time.Time `json:"phase_changed_at"`
	StandbyTTLSeconds *int      `json:"standby_ttl_seconds"`
	ArchiveTTLSeconds *int      `json:"archive_ttl_seconds"`
	// BackupIntervalSeconds is between two backups of the home; null: the server's, 0: none.
	// BackupKeep is which are kept; null: the server's rule.
	BackupIntervalSeconds *int       `json:"backup_interval_seconds"`
	BackupKeep            *string    `json:"backup_keep"`
	CreatedAt             time.Time  `json:"created_at"`
	UpdatedAt             time.Time  `json:"updated_at"`
	DeletedAt             *time.Time `json:"deleted_at"`
	// PurgedAt is when a deleted workspace's volume is removed, and the deletion can no
	// longer be undone; null if it cannot be undone now.
	PurgedAt *time.Time `json:"purged_at,omitempty"`

	// Template is null for a workspace that was created without one.
	Template *WorkspaceTemplate `json:"template"`
}

// Condition is one observed fact.
type Condition struct {
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	LastTransitionTime time.Time `json:"last_transition_time"`
}

// Progress is how far the running operation is. Done and Total are bytes and
// 0 where unknown.
type Progress struct {
	Step string `json:"step"`
	// What the step waits for: the name of a container, or the backend's reason.
	// Empty for a step that does not wait.
	Detail string `json:"detail"`
	Done   int64  `json:"done"`
	Total  int64  `json:"total"`
	// Files and folders, where they count; recent bytes per second; and an
	// estimate of the time that is left. 0 where unknown.
	Entries      int64 `json:"entries"`
	EntriesTotal int64 `json:"entries_total"`
	Rate         int64 `json:"rate"`
	SecondsLeft  int64 `json:"seconds_left"`
	// The steps of the operation so far, the current one last.
	Steps []ProgressStep `json:"steps"`
}

// ProgressStep is a step that an operation has reached. Done is the bytes when it
// ended, 0 where unknown.
type ProgressStep struct {
	Step    string    `json:"step"`
	BeganAt time.Time `json:"began_at"`
	Done    int64     `json:"done"`
}

// WorkspaceList is the answer of GET /workspaces.
type WorkspaceList struct {
	Workspaces []Workspace `json:"workspaces"`
	NextCursor string      `json:"next_cursor"`
}

// Size is a size that a workspace may have.
type Size struct {
	Name        string  `json:"name"`         // "default" is the size of workspaces without another one
	CPUs        float64 `json:"cpus"`         // cores; 0: no limit
	MemoryBytes int64   `json:"memory_bytes"` // 0: no limit
	DiskBytes   int64   `json:"disk_bytes"`   // of the home; 0: no limit
}

// SizeList is the answer of GET /sizes; the first size is the default one.
type SizeList struct {
	Sizes []Size `json:"sizes"`
}

// CreateWorkspace is the body of POST /workspaces.
type CreateWorkspace struct {
	Name              string  `json:"name"`
	Description       string  `json:"description,omitempty"`
	Memo              string  `json:"memo,omitempty"`
	ImageRef          string  `json:"image_ref,omitempty"`
	Size              string  `json:"size,omitempty"` // default: the default one
	DesiredState      *string `json:"desired_state,omitempty"`
	StandbyTTLSeconds *int    `json:"standby_ttl_seconds,omitempty"`
	ArchiveTTLSeconds *int    `json:"archive_ttl_seconds,omitempty"`
	// BackupIntervalSeconds is 0 for none, and otherwise at least 600; BackupKeep is a rule such as
	// 24h,7d,4w,6m. Both default to the server's, or the template's.
	BackupIntervalSeconds *int   `json:"backup_interval_seconds,omitempty"`
	BackupKeep            string `json:"backup_keep,omitempty"`
	// QueueAtLimit creates the workspace also at the running limit, which its start then awaits.
	QueueAtLimit bool `json:"queue_at_limit,omitempty"`

	Env      map[string]string `json:"env,omitempty"`
	TimeZone string            `json:"time_zone,omitempty"`

	// Repositories are cloned by the first start. They replace all of the template or of Like.
	Repositories []Repository `json:"repositories,omitempty"`

	// Template is the name of a template, with values of its parameters: the workspace gets its
	// settings where the request has none. Like is the id of a workspace of the caller whose settings
	// it gets.
	Template   string            `json:"template,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Like       string            `json:"like,omitempty"`
}

// UpdateWorkspace is the body of PATCH /workspaces/{id}: absent fields are unchanged; a
// TTL, backup_interval_seconds or keep_awake_until that is null is reset to the default. The fields with a help are
// flags of codehub set.
type UpdateWorkspace struct {
	Name                  *string             `json:"name,omitempty" help:"A new name."`
	Description           *string             `json:"description,omitempty" short:"d" help:"Description of the workspace."`
	Memo                  *string             `json:"memo,omitempty" help:"Notes."`
	ImageRef              *string             `json:"image_ref,omitempty" name:"image" help:"Image of the next start."`    // from the next start on
	Size                  *string             `json:"size,omitempty" help:"Size of the next start, one of codehub sizes."` // from the next start on
	DesiredState          *string             `json:"desired_state,omitempty" kong:"-"`
	Queue                 bool                `json:"queue,omitempty" kong:"-"`
	QueueAtLimit          bool                `json:"queue_at_limit,omitempty" kong:"-"` // queue a start that the running limit refuses
	FreeSpace             bool                `json:"free_space,omitempty" kong:"-"`     // start over a limit of disk space
	StandbyTTLSeconds     Nullable[int]       `json:"standby_ttl_seconds,omitzero" kong:"-"`
	ArchiveTTLSeconds     Nullable[int]       `json:"archive_ttl_seconds,omitzero" kong:"-"`
	BackupIntervalSeconds Nullable[int]       `json:"backup_interval_seconds,omitzero" kong:"-"`
	BackupKeep            *string             `json:"backup_keep,omitempty" help:"Which backups are kept, such as 24h,7d,4w,6m, or \"\" for the server's rule."` // empty: the server's rule
	KeepAwakeUntil        Nullable[time.Time] `json:"keep_awake_until,omitzero" kong:"-"`
	AwakeWhileWorking     *bool               `json:"awake_while_working,omitempty" negatable:"" help:"Keep it awake while its processes are at work, for some hours a day."`

	// Env has the variables to change; null as a value removes one, and null as a
	// whole all of them.
	Env      Nullable[map[string]*string] `json:"env,omitzero" kong:"-"`
	TimeZone string                       `json:"time_zone,omitempty" kong:"-"`
}

// Actions of Recover.
const (
	RecoverAfresh  = "afresh"  // clear the error and observe again
	RecoverEmpty   = "empty"   // replace a lost home by an empty one
	RecoverArchive = "archive" // replace a lost home by the archive of ArchiveOpID
	// RecoverSetAside keeps the volume that blocks the home under another name.
	RecoverSetAside = "set_aside"
)

// Recover is the body of POST /workspaces/{id}/recover; an empty body is
// {"action": "afresh"}. RecoverEmpty and RecoverArchive discard the lost data, so
// Confirm must repeat the workspace's name.
type Recover struct {
	Action      string `json:"action,omitempty"`
	ArchiveOpID string `json:"archive_op_id,omitempty"`
	Confirm     string `json:"confirm,omitempty"`
}

// Archive is one archive of a workspace's home: a generation.
type Archive struct {
	OpID      string    `json:"archive_op_id"`
	CreatedAt time.Time `json:"created_at"`
	Size      int64     `json:"size"`    // bytes of home.tar.zst
	Entries   int64     `json:"entries"` // files and folders
	Skipped   int64     `json:"skipped"` // sockets, FIFOs and devices of the home, which are not archived
	Digest    string    `json:"digest"`  // SHA-256 of home.tar.zst, in hex
	Current   bool      `json:"current"` // what a restore unpacks
	Found     bool      `json:"found"`   // found in the bucket, unknown to the database before
}

// ArchiveList is the answer of GET /workspaces/{id}/archives, newest first.
type ArchiveList struct {
	Archives   []Archive `json:"archives"`
	NextCursor string    `json:"next_cursor"`
}

// ArchiveFile is a file, folder or link in an archive. Bytes of names that are not UTF-8 are
// U+FFFD.
type ArchiveFile struct {
	Path       string    `json:"path"` // in the home; . for the home itself
	Kind       string    `json:"kind"` // file, folder or link
	Mode       string    `json:"mode"` // permissions, in octal
	UID        uint32    `json:"uid"`
	GID        uint32    `json:"gid"`
	Size       int64     `json:"size"` // bytes of a file
	ModifiedAt time.Time `json:"modified_at"`
	Link       string    `json:"link,omitempty"`    // target of a symbolic link
	SameAs     string    `json:"same_as,omitempty"` // path of the file of which this is a further hard link
}

// ArchiveFiles is the answer of GET /workspaces/{id}/archive/files: folders, then the others, by name.
type ArchiveFiles struct {
	Files      []ArchiveFile `json:"files"`
	NextCursor string        `json:"next_cursor"`
}

// Login is the body of POST /login.
type Login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// User is a user as the API shows them.
type User struct {
	ID        string    `json:"id"`
	Username  string    `json:"username"`
	Admin     bool      `json:"admin"`
	CreatedAt time.Time `json:"created_at"`
}

// BeginDevice is the body of POST /login/device.
type BeginDevice struct {
	Name string `json:"name"` // of the program's machine
	// Username is the account that alone can allow the login; empty: any account.
	Username string `json:"username,omitempty"`
	// TokenLifetime is how many seconds the API token is to last; 0, or more than 90 days: 90
	// days.
	TokenLifetime int64 `json:"token_lifetime_seconds,omitempty"`
}

// DeviceLogin is the answer of POST /login/device: a login that waits for a user.
type DeviceLogin struct {
	DeviceCode string    `json:"device_code"`
	UserCode   string    `json:"user_code"`
	URL        string    `json:"url"` // where the user types UserCode in
	ExpiresAt  time.Time `json:"expires_at"`
	Interval   int       `json:"interval"` // seconds between two attempts to redeem DeviceCode
}

// RedeemLogin is the body of POST /login/token. Verifier is absent with a device code.
type RedeemLogin struct {
	Code     string `json:"code"`
	Verifier string `json:"verifier,omitempty"`
	// ExpiresAt makes the token end earlier than the user has allowed.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// RedeemedLogin is the answer of POST /login/token.
type RedeemedLogin struct {
	Username string `json:"username"`
	Token    Token  `json:"token"`
}

// CreateToken is the body of POST /tokens.
type CreateToken struct {
	Name      string     `json:"name"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Scope is read, workspaces or admin, the default: everything that the user may do.
	Scope       string `json:"scope,omitempty"`
	WorkspaceID string `json:"workspace_id,omitempty"` // the only workspace of the token; default: all
}

// Token is an API token; Token itself is shown once, on creation.
type Token struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Token      string     `json:"token,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at"`

	Scope       string  `json:"scope"`
	WorkspaceID *string `json:"workspace_id"` // null: all workspaces
}

// TokenList is the answer of GET /tokens.
type TokenList struct {
	Tokens     []Token `json:"tokens"`
	NextCursor string  `json:"next_cursor"`
}

// Error is the body of an error response.
type Error struct {
	Code    string         `json:"error"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitempty"`
}

// NextCall is the call that a client can make after a refusal, as "next" in its details,
// where a page has a button. Body is the JSON to send.
type NextCall struct {
	Method string         `json:"method"`
	URL    string         `json:"url"`
	Body   map[string]any `json:"body,omitempty"`
}

// TokenHeader carries an API token on /api and on proxied requests.
const TokenHeader = "Codehub-Session-Token"

// VersionHeader names the server's version in every response of the API.
const VersionHeader = "Codehub-Version"

// Names of the events of GET /events.
const (
	EventUpdated   = "workspace_updated" // data: Workspace
	EventDeleted   = "workspace_deleted" // data: {"id": "…"}
	EventHeartbeat = "heartbeat"         // data: {}
)

// ProjectPort is a port on which a workspace is expected to listen.
type ProjectPort struct {
	Port  int    `json:"port"`
	Label string `json:"label"`
	Open  bool   `json:"open"` // the workspace's page has a button for it
}

// Port is a port of a workspace on which a program listens, which is shared, or which its project
// names.
type Port struct {
	Port      int    `json:"port"`
	Listening bool   `json:"listening"`
	Local     bool   `json:"local"`   // it listens on a loopback address alone
	Label     string `json:"label"`   // that the project gives it; empty: none
	Process   string `json:"process"` // empty if it is not known
	PID       int    `json:"pid"`     // 0 if it is not known
	// Since is when it was first seen; null if nothing listens.
	Since     *time.Time `json:"since"`
	URL       string     `json:"url"`
	VisibleTo string     `json:"visible_to"` // owner, users or public
	ExpiresAt *time.Time `json:"expires_at"` // of the share; null: it does not end
}

// PortList is the ports of a workspace, by number.
type PortList struct {
	Running bool `json:"running"`
	// Known reports that the workspace's agent reported the listening ports.
	Known bool   `json:"known"`
	Ports []Port `json:"ports"`
	// MaxVisibility is with whom a port may be shared at most.
	MaxVisibility string `json:"max_visibility"`
}

// SharePort shares a port.
type SharePort struct {
	With             string `json:"with"`
	ExpiresInSeconds *int   `json:"expires_in_seconds,omitempty"`
}
