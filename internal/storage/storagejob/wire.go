// Package storagejob is the program inside a storage job: `codehub storage-job` packs the mounted home into an
// archive, or unpacks one into it, or does so with a generation of a backup (docs/adr/0005-storage-jobs-have-no-network.md). It reads its instructions
// from standard input and reports on standard output, one JSON object per line. It has none of the bucket's
// credentials and, except in Kubernetes, no network.
package storagejob

import (
	"codehub/internal/archive"
	"codehub/internal/storage/transfer"
	"codehub/internal/workspace"
)

// ObjectName is the archive's name in the mounted folder of a folder store; its .meta is in the
// same folder.
const ObjectName = "home.tar.zst"

// SocketName is the name of the bucket's socket in its mounted folder. The
// server there speaks HTTP and forwards requests to the bucket.
const SocketName = "bucket.sock"

// Exit codes of a job. Its last event has the details.
const (
	ExitOK       = 0
	ExitFailed   = 1
	ExitNoOrders = 3
)

// KindFingerprint is the kind of a job that only reads the metadata of a home
// and reports its fingerprint, which compares with that of an archive job
// (archive.Stats). It needs the home mounted read-only at runtime.JobHomeDir and
// nothing else, CAP_DAC_OVERRIDE and CAP_FOWNER as an archive job, and of its Spec
// no more than Kind and Claim:
//
//	{"kind": "fingerprint", "claim": "01900000-…"}
//
// It reports as any job: progress (entries), then a result in whose Stats are
// Entries, Bytes (an estimate), Skipped and Fingerprint. A home that changes
// while the job reads it is an Error of kind Changed.
const KindFingerprint = "fingerprint"

// Spec is the instructions of a job.
type Spec struct {
	Kind  string `json:"kind"`  // as runtime.JobKind, or KindFingerprint
	Claim string `json:"claim"` // repeated in the result

	// Meta is the archive's .meta. JobArchive adds the figures and stores it
	// last; JobRestore compares the archive with it. Of a generation it has the figures, and the size and
	// digest of the manifest.
	Meta archive.Meta `json:"meta"`

	// UID is the uid, and the gid, of the home that becomes workspace.ArchivedUID in the
	// archive; 0: none. For JobArchive and JobBackup.
	UID uint32 `json:"uid,omitempty"`

	// Signed has the URLs of the bucket; nil: the archive is in the mounted folder.
	Signed *Signed `json:"signed,omitempty"`

	// Recipient is for whom what the job stores is encrypted (encryption.EncryptFor); empty: it is not. Keys are the secret
	// keys that open what the job reads, of one workspace; none: nothing that it reads is encrypted.
	Recipient string   `json:"recipient,omitempty"`
	Keys      []string `json:"keys,omitempty"`

	// Generation is what JobBackup stores, and what JobDrill and JobRestore read; nil: an archive.
	Generation *Generation `json:"generation,omitempty"`

	// Authorities are certificates in PEM by which the bucket is trusted in addition to those
	// of the system. For a job without the bucket's socket.
	Authorities string `json:"authorities,omitempty"`

	// MinFree is the share of a disk, such as 0.05, that the job leaves free:
	// of the home's disk for a restore or drill, of the folder's for an archive or backup in a
	// folder. 0: none.
	MinFree float64 `json:"min_free,omitempty"`

	// SharedMinFree is the share of the disk of Dirs.Scratch that a restore leaves
	// free. It is for a home with a limit, whose file system reports what is left of
	// that and not of the disk. 0: none.
	SharedMinFree float64 `json:"shared_min_free,omitempty"`
}

// Signed has the pre-signed URLs of the archive, one for each request.
type Signed struct {
	Upload *transfer.Ticket `json:"upload,omitempty"` // archive: home.tar.zst
	Meta   string           `json:"meta,omitempty"`   // archive: the .meta
	Get    string           `json:"get,omitempty"`    // restore: home.tar.zst
}

// Generation describes a generation of a home. Names are those in the workspace's folder of backups.
type Generation struct {
	Name   string            `json:"name"`             // of its manifest
	Former string            `json:"former,omitempty"` // backup: of the manifest before; empty: none
	Signed *SignedGeneration `json:"signed,omitempty"` // nil: the folder is mounted

	// FullRead and SkipUnchanged are as in archive.BackupOptions.
	FullRead      bool `json:"full_read,omitempty"`
	SkipUnchanged bool `json:"skip_unchanged,omitempty"`

	// Paced makes a backup rest when the disk is slow (archive.Pacer).
	Paced bool `json:"paced,omitempty"`
}

// SignedGeneration has the pre-signed URLs of a generation.
type SignedGeneration struct {
	Put   string            `json:"put,omitempty"`   // backup: the manifest
	Packs []string          `json:"packs,omitempty"` // backup: its packs, by their numbers
	Get   map[string]string `json:"get,omitempty"`   // manifests and packs to read, by their names
}

// Event is one line of a job's report: progress or, in the last line, the
// result.
type Event struct {
	Progress *Progress `json:"progress,omitempty"`
	Result   *Result   `json:"result,omitempty"`
}

// Progress is a job's progress.
type Progress struct {
	Step         string `json:"step"` // as runtime.Progress
	Bytes        int64  `json:"bytes"`
	BytesTotal   int64  `json:"bytes_total,omitempty"`
	Entries      int64  `json:"entries"`
	EntriesTotal int64  `json:"entries_total,omitempty"`
}

// Result is the result of a job. Without an Error the job is done and its
// effects are durable.
type Result struct {
	Claim string        `json:"claim"`
	Kind  string        `json:"kind"`
	Stats archive.Stats `json:"stats"`
	Made  *Made         `json:"made,omitempty"`
	Error *Error        `json:"error,omitempty"`
}

// Made is the result of a backup.
type Made struct {
	Digest    string `json:"digest"` // of the manifest, or of the one before if Unchanged
	Size      int64  `json:"size"`
	Unchanged bool   `json:"unchanged,omitempty"` // nothing was stored: the former backup has it all
	workspace.BackupFigures
}

// Error is why a job failed.
type Error struct {
	Kind    ErrorKind `json:"kind"`
	Message string    `json:"message"`

	// Room is set if the archive does not fit on the disk of the archives. Kind is Unavailable
	// then, since servers that do not know Room wait as for the bucket.
	Room *Room `json:"room,omitempty"`
}

// Room is the space on the disk of the archives that an archive needs, and that is available, in
// bytes.
type Room struct {
	Needs int64 `json:"needs"`
	Free  int64 `json:"free"`
}

// ErrorKind classifies failures by what the server does about them.
type ErrorKind string

const (
	Corrupted    ErrorKind = "corrupted"    // the archive is damaged or hostile; a retry gives the same
	NotFound     ErrorKind = "not_found"    // the archive does not exist
	Unrestorable ErrorKind = "unrestorable" // the home has an entry that no restore could recreate, or its archive is too large for the bucket
	Changed      ErrorKind = "changed"      // the home changed while it was packed
	Unavailable  ErrorKind = "unavailable"  // the bucket does not respond
	DiskFull     ErrorKind = "disk_full"    // not enough space for the home
	NoOrders     ErrorKind = "no_orders"    // the instructions are incomplete; the server that sent them ended
	Stopped      ErrorKind = "stopped"      // stopped by SIGTERM, as when the machine shuts down
	Failed       ErrorKind = "failed"       // anything else

	// MorePacks: the signed requests of a backup were used up; try again with more.
	MorePacks ErrorKind = "more_packs"

	// SharedDiskFull: the home has space, and its disk has not; see Spec.SharedMinFree.
	SharedDiskFull ErrorKind = "shared_disk_full"
)
