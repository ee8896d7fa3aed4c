package api

import "time"

// States of a circuit breaker.
const (
	BreakerClosed   = "closed"    // calls go through
	BreakerOpen     = "open"      // calls fail at once: the backend did not respond
	BreakerHalfOpen = "half-open" // one call probes the backend
)

// Breaker is the state of one backend as a server sees it.
type Breaker struct {
	State    string    `json:"state"`
	Since    time.Time `json:"since"`
	Failures int       `json:"failures"`        // in a row
	Error    string    `json:"error,omitempty"` // the last failure, while there are any
}

// Server is one codehub process, for administrators.
type Server struct {
	ID        string             `json:"id"`
	Hostname  string             `json:"hostname"`
	Version   string             `json:"version"`
	StartedAt time.Time          `json:"started_at"`
	SeenAt    time.Time          `json:"seen_at"`
	FlushedAt *time.Time         `json:"flushed_at"` // up to when its activity is flushed
	Leads     bool               `json:"leads"`
	Alive     bool               `json:"alive"` // seen recently
	Backends  map[string]Breaker `json:"backends"`
	// Conditions are the problems that the server has now.
	Conditions []ServerCondition `json:"conditions"`
}

// ServerCondition is a lasting problem of a server, such as a full disk.
type ServerCondition struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since"`
	Error string    `json:"error"`
}

// AdminStatus is the answer of GET /admin/status.
type AdminStatus struct {
	Runtime         string           `json:"runtime"` // what runs the workspaces: docker or kubernetes
	Servers         []Server         `json:"servers"`
	Phases          map[string]int   `json:"phases"`     // workspaces in each phase, DELETED left out
	Operations      map[string]int   `json:"operations"` // running ones, by kind
	Running         int              `json:"running"`    // what counts against max_running_global
	MaxRunning      int              `json:"max_running_global"`
	PerUser         int              `json:"max_running_per_user"`
	WatchedUntil    *time.Time       `json:"watched_until"` // the time through which activity is recorded; nil: none yet
	TickedAt        *time.Time       `json:"ticked_at"`     // end of the last tick of the leader; nil: none yet
	ObservedAt      *time.Time       `json:"observed_at"`   // when a tick last observed the workspaces; nil: not yet
	Hold            string           `json:"hold"`          // why codehub is on hold; empty: it is not
	HoldSince       *time.Time       `json:"hold_since"`
	LostNodes       []LostNode       `json:"lost_nodes"`       // of a cluster, those that do not respond and have workspaces
	LostArchives    []LostArchive    `json:"lost_archives"`    // at most 100, the latest first
	LostVolumes     []LostVolume     `json:"lost_volumes"`     // at most 100, the latest first
	FailedDeletions []FailedDeletion `json:"failed_deletions"` // at most 100, the latest first
	IdleStops       []IdleStop       `json:"idle_stops"`       // by idle timeouts in the last 24 h; at most 100, the latest first
	Images          []ImageBuild     `json:"images"`           // that this server makes, in that order
	Backups         BackupStatus     `json:"backups"`
	DatabaseDrill   *DatabaseDrill   `json:"database_drill"` // the last one; nil: none yet
}

// BackupStatus is the state of the backups of homes and of the database.
type BackupStatus struct {
	Homes      int        `json:"homes"`       // that have a backup
	Compared   int        `json:"compared"`    // of them a backup was compared within CODEHUB_BACKUP_DRILL_INTERVAL
	Damaged    int        `json:"damaged"`     // of them the last backup is damaged
	ComparedAt *time.Time `json:"compared_at"` // when a backup was last compared; null: never
	Waiting    int        `json:"waiting"`     // backups that were requested
	Running    int        `json:"running"`     // backups that are being made
	Bytes      int64      `json:"bytes"`       // that backups of homes use in the bucket
	// Late are homes in use without a recent backup, and OverLimit those that are not backed up on
	// schedule because of the limit of their owner, as the leader last saw.
	Late      int `json:"late"`
	OverLimit int `json:"over_limit"`
	// DatabaseAt is the time of the last backup of the database in the bucket; null: not known.
	DatabaseAt *time.Time `json:"database_at"`
}

// DatabaseDrill is the result of a drill: the last backup of the database was restored into a
// scratch database, and compared with Docker and the bucket.
type DatabaseDrill struct {
	EndedAt    time.Time       `json:"ended_at"`
	Backup     string          `json:"backup"`    // its key in the bucket
	BackupAt   *time.Time      `json:"backup_at"` // nil: it cannot be restored
	Tables     int             `json:"tables"`    // that were restored
	Rows       int64           `json:"rows"`      // that were restored
	Secrets    int             `json:"secrets"`   // encrypted values that were decrypted
	Comparison DrillComparison `json:"comparison"`
	// Problem is why a restore of the backup would fail or lose something; empty: it would not.
	Problem string `json:"problem"`
}

// DrillComparison counts the workspaces of a restored database by what a restore would do.
type DrillComparison struct {
	Workspaces int            `json:"workspaces"` // in the backup or created after it
	Unchanged  int            `json:"unchanged"`  // of them, those that stay as the backup has them
	Changes    map[string]int `json:"changes"`    // those that have changed since the backup, by reason_code of a restore plan
	Missing    int            `json:"missing"`    // those that have not changed, and whose home or archive is missing
	MissingIn  []string       `json:"missing_in"` // their names and owners, at most 5
}

// ImageBuild is an image that the server makes in the background (CODEHUB_BUILD_IMAGES).
type ImageBuild struct {
	Name      string     `json:"name"`      // ide, slim or full
	Image     string     `json:"image"`     // its reference
	State     string     `json:"state"`     // waiting, making, ready or failed
	Step      int        `json:"step"`      // of the last attempt; 0: not known
	Steps     int        `json:"steps"`     // in all; 0: not known
	StepText  string     `json:"step_text"` // what the step does
	StartedAt *time.Time `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
	Error     string     `json:"error"` // why it failed; empty: it did not
	Log       []string   `json:"log"`   // the last lines of the attempt that failed
}

// LostNode is a node of a cluster that does not respond. Its processes may still write.
type LostNode struct {
	Name       string              `json:"name"`
	Since      time.Time           `json:"since"`
	Workspaces []LostNodeWorkspace `json:"workspaces"`
}

// LostNodeWorkspace is a workspace on a node that does not respond.
type LostNodeWorkspace struct {
	WorkspaceID string `json:"workspace_id"`
	Name        string `json:"name"`
	Owner       string `json:"owner"`
}

// DeadNode is the answer of POST /admin/nodes/{name}/dead.
type DeadNode struct {
	Name    string `json:"name"`
	Removed int    `json:"removed"` // Pods
}

// IdleStop is a workspace that an idle timeout stopped or archived.
type IdleStop struct {
	WorkspaceID string    `json:"workspace_id"`
	Name        string    `json:"name"`
	Owner       string    `json:"owner"`
	Cause       string    `json:"cause"` // idle: stopped, unused: archived
	At          time.Time `json:"at"`
}

// LostArchive is a workspace whose home is in an archive that is missing from the
// archive storage or damaged.
type LostArchive struct {
	WorkspaceID string    `json:"workspace_id"`
	Name        string    `json:"name"`
	Owner       string    `json:"owner"`
	Reason      string    `json:"reason"` // ArchiveMissing or ArchiveCorrupted
	ArchiveKey  string    `json:"archive_key"`
	Since       time.Time `json:"since"`
}

// LostVolume is a workspace whose home is lost with its volume.
type LostVolume struct {
	WorkspaceID string    `json:"workspace_id"`
	Name        string    `json:"name"`
	Owner       string    `json:"owner"`
	Reason      string    `json:"reason"` // NoVolume, ForeignVolume or Removing
	Volume      string    `json:"volume"`
	Since       time.Time `json:"since"`
}

// FailedDeletion is a deleted workspace whose container or home could not be removed.
type FailedDeletion struct {
	WorkspaceID string    `json:"workspace_id"`
	Name        string    `json:"name"`
	Owner       string    `json:"owner"`
	Reason      string    `json:"reason"` // an error_reason
	Message     string    `json:"message"`
	Retrying    bool      `json:"retrying"` // false: its owner has to delete it again
	DeletedAt   time.Time `json:"deleted_at"`
}

// Settings is the answer of GET /admin/settings.
type Settings struct {
	Server   string    `json:"server"` // host name of the server that answers
	Settings []Setting `json:"settings"`
}

// Setting is a setting of codehub serve and what is in effect.
type Setting struct {
	Setting string `json:"setting"` // its variable
	Value   string `json:"value"`   // as it is set; of a secret SecretSet or SecretNotSet, or an address without password and parameters
	From    string `json:"from"`    // default, environment, file or flag
}

// Origins of a Setting's value.
const (
	FromDefault     = "default"
	FromEnvironment = "environment"
	FromFile        = "file" // the variable with _FILE names it
	FromFlag        = "flag"
)

// Values of a Setting that is a secret.
const (
	SecretSet    = "(set)"
	SecretNotSet = "(not set)"
)

// Orphan is a Docker resource without a workspace.
type Orphan struct {
	Kind        string    `json:"kind"` // container, volume, job or set-aside
	Name        string    `json:"name"`
	WorkspaceID string    `json:"workspace_id,omitempty"`
	Detail      string    `json:"detail,omitempty"`
	FirstSeenAt time.Time `json:"first_seen_at"`
	// RemovedAfter is when it is removed unless a workspace turns up; nil for
	// resources that are never removed automatically.
	RemovedAfter *time.Time `json:"removed_after"`
}

// OrphanList is the answer of GET /admin/orphans.
type OrphanList struct {
	Orphans    []Orphan `json:"orphans"`
	NextCursor string   `json:"next_cursor"`
}

// Account is a user as administrators see them.
type Account struct {
	ID            string     `json:"id"`
	Username      string     `json:"username"`
	Admin         bool       `json:"admin"`
	Disabled      bool       `json:"disabled"`
	MaxRunning    *int       `json:"max_running"` // the user's own limit; null: none, 0: unlimited
	Running       int        `json:"running"`     // workspaces that count against the running limit
	Workspaces    int        `json:"workspaces"`
	MaxWorkspaces *int       `json:"max_workspaces"` // as max_running
	MaxBytes      *int64     `json:"max_bytes"`      // as max_running
	Bytes         int64      `json:"bytes"`          // of homes, and of archives that are homes, as last measured
	BackupBytes   int64      `json:"backup_bytes"`   // that backups of homes use in the bucket
	LockedTill    *time.Time `json:"locked_until"`
	CreatedAt     time.Time  `json:"created_at"`
	Passkeys      int        `json:"passkeys"`
	// Suspended is why the identity provider's answer has ended the access: refused,
	// not_allowed or unreachable; null: it has not.
	Suspended      *string    `json:"suspended"`
	SuspendedSince *time.Time `json:"suspended_since"` // null: not, or not known
	// Limits are in effect: the user's own, or else those of groups or the server.
	Limits AccountLimits `json:"limits"`
	// InvitedUntil is how long an invitation of the user is valid; null: there is none.
	InvitedUntil *time.Time `json:"invited_until"`
	// InvitationURL is the link of a new invitation, in the answer that created it alone.
	InvitationURL string `json:"invitation_url,omitempty"`
}

// AccountLimits are the limits that are in effect for a user.
type AccountLimits struct {
	Running    Limit `json:"running"`
	Workspaces Limit `json:"workspaces"`
	Bytes      Limit `json:"bytes"`
	Backups    Limit `json:"backups"` // of backup_bytes
}

// Where a Limit comes from.
const (
	LimitOwn    = "own"
	LimitGroup  = "group"
	LimitServer = "server"
)

// Limit is a limit that is in effect for a user.
type Limit struct {
	Max   int64  `json:"max"`   // 0: no limit
	From  string `json:"from"`  // own, group or server
	Group string `json:"group"` // the name of the group that it comes from; empty: it does not
}

// AccountList is the answer of GET /users.
type AccountList struct {
	Users      []Account `json:"users"`
	NextCursor string    `json:"next_cursor"`
}

// CreateAccount is the body of POST /users. Without a password the user gets an invitation.
type CreateAccount struct {
	Username      string `json:"username"`
	Password      string `json:"password,omitempty"`
	Admin         bool   `json:"admin,omitempty"`
	MaxRunning    *int   `json:"max_running,omitempty"`
	MaxWorkspaces *int   `json:"max_workspaces,omitempty"`
	MaxBytes      *int64 `json:"max_bytes,omitempty"`
}

// ImportAccounts is the body of POST /users/import.
type ImportAccounts struct {
	// CSV is a list with a line of column names: name, and as in CreateAccount admin,
	// max_running, max_workspaces and max_bytes.
	CSV string `json:"csv"`
}

// ImportedAccounts is the answer of POST /users/import: the users with their InvitationURL.
type ImportedAccounts struct {
	Users []Account `json:"users"`
}

// What is wrong with a line of ImportAccounts.
const (
	ImportFormat  = "format"  // the list, from this line on
	ImportColumns = "columns" // the names of the columns, or the number of values
	ImportName    = "name"    // no valid username
	ImportTaken   = "taken"   // there is a user of that name
	ImportTwice   = "twice"   // an earlier line has the name
	ImportValue   = "value"   // another value
)

// ImportProblem is an entry of the details "lines" of a refused POST /users/import.
type ImportProblem struct {
	Line    int    `json:"line"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// PatchAccount is the body of PATCH /users/{id}; absent fields are unchanged.
type PatchAccount struct {
	Admin         *bool           `json:"admin,omitempty"`
	Disabled      *bool           `json:"disabled,omitempty"`
	MaxRunning    Nullable[int]   `json:"max_running,omitzero"`
	MaxWorkspaces Nullable[int]   `json:"max_workspaces,omitzero"`
	MaxBytes      Nullable[int64] `json:"max_bytes,omitzero"`
	Password      *string         `json:"password,omitempty"`
	// StopWorkspaces also stops all workspaces of the user.
	StopWorkspaces bool `json:"stop_workspaces,omitempty"`
}

// ChangePassword is the body of POST /users/me/password.
type ChangePassword struct {
	Current string `json:"current"`
	New     string `json:"new"`
}

// Actions of a RestoreStep.
const (
	RestoreKeep    = "keep"    // it stays as it is in the database
	RestoreVolume  = "volume"  // its volume is its home
	RestoreArchive = "archive" // an archive holds its home
)

// RestorePlan is the answer of GET /admin/restore: a page of the workspaces that a
// takeover changes, or that an administrator should check, by id.
type RestorePlan struct {
	OnHold     bool          `json:"on_hold"`
	Reason     string        `json:"reason"` // why it is on hold
	Since      *time.Time    `json:"since"`
	Unchanged  int           `json:"unchanged"` // number of the other workspaces
	Workspaces []RestoreStep `json:"workspaces"`
	NextCursor string        `json:"next_cursor"`
}

// RestoreResult is the answer of POST /admin/restore.
type RestoreResult struct {
	Changed   int `json:"changed"`   // number of workspaces that were changed
	Unchanged int `json:"unchanged"` // number of the others
}

// RestoreStep is the result of a takeover for one workspace.
type RestoreStep struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Owner  string `json:"owner"` // empty: unknown, so it becomes the administrator's who applies the plan
	Action string `json:"action"`
	Reason string `json:"reason"` // English sentences
	// ReasonCode names the reason: one of those in openapi.json.
	ReasonCode string `json:"reason_code"`
	New        bool   `json:"new"`       // the database does not have it
	Undelete   bool   `json:"undelete"`  // its deletion is undone
	Running    bool   `json:"running"`   // its container runs
	Lost       bool   `json:"lost"`      // no complete copy of its home is known
	SetAside   bool   `json:"set_aside"` // a volume that blocks its home is kept under another name

	ArchiveKey string     `json:"archive_key,omitempty"`
	ArchivedAt *time.Time `json:"archived_at,omitempty"`
}

// ApplyRestore is the body of POST /admin/restore. Workspaces are named by id, or
// by name.
type ApplyRestore struct {
	Only         []string `json:"only,omitempty"`          // change these alone; empty: all
	KeepDatabase []string `json:"keep_database,omitempty"` // leave these as they are in the database
}
