package workspace

import (
	"strings"
	"time"
)

// BackupState is how far a Backup is.
type BackupState string

const (
	BackupWaiting BackupState = "waiting" // requested
	BackupRunning BackupState = "running"
	BackupDone    BackupState = "done"
	BackupFailed  BackupState = "failed"
)

// Why a backup is made.
const (
	BackupScheduled = "schedule"
	BackupRequested = "request"
	BackupArchive   = "archive"   // before the home is archived
	BackupRestore   = "restore"   // before another backup replaces the home
	BackupImage     = "image"     // before the workspace starts with another image
	BackupHandOver  = "hand_over" // before the workspace gets another owner
)

// MaxBackupNote is the length of a backup's note in bytes.
const MaxBackupNote = 500

// Limits of the settings of a workspace's backups.
const (
	MinBackupInterval = 600 // seconds; 0 is none
	MaxBackupKeep     = 100 // bytes
)

// Backup is one generation of a home, made while it may be in use.
type Backup struct {
	ID          string
	WorkspaceID ID
	State       BackupState
	Cause       string
	Note        string
	Key         string // of its manifest in the bucket; empty until it begins
	Digest      string // SHA-256 of the manifest, in hex
	Size        int64  // bytes of the manifest
	CreatedAt   time.Time
	BegunAt     *time.Time // the home is as of this time or a little later
	EndedAt     *time.Time
	Error       string // why it failed
	UnchangedAt *time.Time
	VerifiedAt  *time.Time // when a drill last compared all of it; nil: not yet
	Damage      string     // what that drill found; empty: nothing

	BackupFigures
}

// BackupFigures are what a backup has. Added, Modified and Removed are files, compared with the
// backup before; of the first one all are added.
type BackupFigures struct {
	Entries, Files, Bytes, Skipped int64
	Stored                         int64 // bytes of the packs that it added
	Changed                        int64 // files that changed while they were read
	Problems                       int64 // files that could not be read, and are left out
	Added, Modified, Removed       int64
}

// BackupSpace is how much space backups use in the bucket, in bytes, until they are removed there.
type BackupSpace struct {
	Workspace int64 // of this workspace's home
	Used      int64 // of all workspaces of its owner, with deleted ones
	Limit     int64 // of Used; 0: none
}

// Full reports that the owner's homes are backed up only before a step that replaces one.
func (s BackupSpace) Full() bool { return s.Limit > 0 && s.Used >= s.Limit }

// IsBackup reports whether an archive key is that of a backup, which is no single object: it can
// restore a home, and not be downloaded or moved as an archive.
func IsBackup(key string) bool { return strings.HasSuffix(key, ".manifest.zst") }

// SharedArchive reports whether the archive key of a workspace is that of a backup or of an archive of
// another workspace, which a fork has until its first start. Neither is an archive of its own: it can
// restore the home, and not be downloaded or moved.
func SharedArchive(id ID, key string) bool {
	parts := strings.Split(key, "/")
	return IsBackup(key) || len(parts) == 4 && ValidID(parts[1]) && parts[1] != string(id)
}

// Archive describes the backup as what a home is restored from.
func (b Backup) Archive() Archive {
	a := Archive{Key: b.Key, WorkspaceID: b.WorkspaceID, OpID: b.ID, Digest: b.Digest, Size: b.Size, Entries: b.Entries, Skipped: b.Skipped, CreatedAt: b.CreatedAt}
	if b.BegunAt != nil {
		a.CreatedAt = *b.BegunAt
	}
	return a
}

// BackupOfKey returns the id of the backup whose manifest has this key in the bucket; empty for another
// key.
func BackupOfKey(key string) string {
	_, name, _ := strings.Cut(key[strings.LastIndexByte(key, '/')+1:], "-")
	name, is := strings.CutSuffix(name, ".manifest.zst")
	id, _, _ := strings.Cut(name, ".") // the manifest may be a rewritten one
	if !is || !ValidID(id) {
		return ""
	}
	return id
}
