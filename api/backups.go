package api

import "time"

// Backup is one generation of a workspace's home, made while it may be in use.
type Backup struct {
	ID          string     `json:"id"`
	State       string     `json:"state"` // waiting, running, done or failed
	Cause       string     `json:"cause"` // schedule, request; before an archive, restore, image or hand_over
	Note        string     `json:"note"`
	CreatedAt   time.Time  `json:"created_at"`
	BegunAt     *time.Time `json:"begun_at"` // the home is as of this time
	EndedAt     *time.Time `json:"ended_at"`
	UnchangedAt *time.Time `json:"unchanged_at"` // a later look found the home as this backup has it
	VerifiedAt  *time.Time `json:"verified_at"`  // when a drill last compared all of it
	Damage      string     `json:"damage"`       // what that drill found; empty: nothing
	Error       string     `json:"error"`
	Entries     int64      `json:"entries"`
	Files       int64      `json:"files"`
	Bytes       int64      `json:"bytes"`
	StoredBytes int64      `json:"stored_bytes"` // that it added to the bucket
	Skipped     int64      `json:"skipped"`      // sockets, FIFOs and devices
	Changed     int64      `json:"changed"`      // files that changed while they were read
	Problems    int64      `json:"problems"`     // files that could not be read
	Added       int64      `json:"added"`        // files, compared with the backup before
	Modified    int64      `json:"modified"`
	Removed     int64      `json:"removed"`
}

// BackupList is the answer of GET /workspaces/{id}/backups, newest first.
type BackupList struct {
	Backups    []Backup    `json:"backups"`
	Space      BackupSpace `json:"space"`
	NextCursor string      `json:"next_cursor,omitempty"`
}

// BackupSpace is how many bytes backups use in the bucket, until they are removed there.
type BackupSpace struct {
	WorkspaceBytes int64 `json:"workspace_bytes"` // of this workspace's home
	UserBytes      int64 `json:"user_bytes"`      // of all workspaces of its owner
	MaxUserBytes   int64 `json:"max_user_bytes"`  // from which none is made on schedule or request; 0: no limit
}

// NewBackup is the body of POST /workspaces/{id}/backups.
type NewBackup struct {
	Note string `json:"note,omitempty"` // at most 500 bytes
}

// RestoreBackup is the body of POST /workspaces/{id}/restore: the home is archived, and replaced
// by that of the backup.
type RestoreBackup struct {
	Backup string `json:"backup"`          // its id
	Start  bool   `json:"start,omitempty"` // start the workspace afterwards
}

// Fork is the body of POST /workspaces/{id}/fork: new workspaces whose homes are that of a backup or an archive.
type Fork struct {
	Backup string `json:"backup,omitempty"` // id of a backup, or archive_op_id of an archive; empty: the archive of an archived workspace
	Count  int    `json:"count,omitempty"`  // 1 to 20; 0: 1
	Name   string `json:"name,omitempty"`   // of the first; others get a number. Empty: that of the workspace with a number
	Start  bool   `json:"start,omitempty"`
}

// BackupChanges is the answer of GET /workspaces/{id}/backups/{backup}/changes.
type BackupChanges struct {
	Backup   string        `json:"backup"`
	Since    string        `json:"since"` // the backup it is compared with; empty: there is none before, and all files are added
	Added    int64         `json:"added"`
	Modified int64         `json:"modified"`
	Removed  int64         `json:"removed"`
	Bytes    int64         `json:"bytes"` // content of the added and modified files
	Files    []ChangedFile `json:"files"` // at most 1,000, in the order of their paths
	More     bool          `json:"more"`  // there are more than those
}

// Changes of a file.
const (
	FileAdded    = "added"
	FileModified = "modified"
	FileRemoved  = "removed"
)

// ChangedFile is a file or link that differs between two backups. Folders are left out.
type ChangedFile struct {
	Path   string `json:"path"`
	Change string `json:"change"` // added, modified or removed
	Kind   string `json:"kind"`   // file or link
	Size   int64  `json:"size"`   // of a removed file: before
}

// FileVersions is the answer of GET /workspaces/{id}/backups/versions, newest first.
type FileVersions struct {
	Versions   []FileVersion `json:"versions"`
	NextCursor string        `json:"next_cursor,omitempty"` // of older ones; a page with few or no versions can have it
}

// FileVersion is the first backup with another version of a file than the backup before.
type FileVersion struct {
	Backup     string    `json:"backup"`
	At         time.Time `json:"at"` // the home of the backup is as of this time
	Note       string    `json:"note"`
	Cause      string    `json:"cause"`
	Change     string    `json:"change"`      // added, modified or removed
	Kind       string    `json:"kind"`        // file or link
	Size       int64     `json:"size"`        // of a removed file: before
	ModifiedAt time.Time `json:"modified_at"` // of a removed file: before
}
