// Package storagejob is what runs inside a storage job: `codehub storage-job`
// packs the home that is mounted for it into an archive, or unpacks one into
// it (docs/adr/0005-storage-jobs-have-no-network.md). It gets its instructions on standard input and reports on
// standard output, a JSON object a line; it has none of the bucket's
// credentials and no network.
package storagejob

import (
	"codehub/internal/archive"
	"codehub/internal/archive/transfer"
)

// ObjectName is the archive's name in the folder that a job of a folder store
// has mounted; its .meta is beside it.
const ObjectName = "home.tar.zst"

// SocketName is the bucket's socket in the folder that is mounted for it: what
// listens there speaks HTTP and passes requests on to the bucket.
const SocketName = "bucket.sock"

// Exit codes of a job. Its last event says more.
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

// Spec is the instructions of one job.
type Spec struct {
	Kind  string `json:"kind"`  // "archive" or "restore", as runtime.JobKind, or KindFingerprint
	Claim string `json:"claim"` // is repeated in the result

	// Meta of the archive. JobArchive fills in what the packing counts and
	// stores it last; JobRestore holds what it reads against it.
	Meta archive.Meta `json:"meta"`

	// Signed is how the bucket is reached through its socket; nil: the archive
	// is in the folder that is mounted.
	Signed *Signed `json:"signed,omitempty"`

	// MinFree is the share of a disk, such as 0.05, that the job leaves free:
	// a restore of that of the home, an archive of that of its folder, if it
	// goes into one. 0: none.
	MinFree float64 `json:"min_free,omitempty"`
}

// Signed are the URLs of the one archive, each good for one thing.
type Signed struct {
	Upload *transfer.Ticket `json:"upload,omitempty"` // archive: home.tar.zst
	Meta   string           `json:"meta,omitempty"`   // archive: where the .meta is put
	Get    string           `json:"get,omitempty"`    // restore: home.tar.zst
}

// Event is one line of a job's report: progress, or, as the last, the result.
type Event struct {
	Progress *Progress `json:"progress,omitempty"`
	Result   *Result   `json:"result,omitempty"`
}

// Progress is how far a job is.
type Progress struct {
	Step         string `json:"step"` // as runtime.Progress
	Bytes        int64  `json:"bytes"`
	BytesTotal   int64  `json:"bytes_total,omitempty"`
	Entries      int64  `json:"entries"`
	EntriesTotal int64  `json:"entries_total,omitempty"`
}

// Result is how a job ended. One without an Error has done all that it was to
// do, durably.
type Result struct {
	Claim string        `json:"claim"`
	Kind  string        `json:"kind"`
	Stats archive.Stats `json:"stats"`
	Error *Error        `json:"error,omitempty"`
}

// Error is why a job failed.
type Error struct {
	Kind    ErrorKind `json:"kind"`
	Message string    `json:"message"`
}

// ErrorKind sorts failures by what is to be done about them.
type ErrorKind string

const (
	Corrupted    ErrorKind = "corrupted"    // the archive is damaged or hostile: trying again gives the same
	NotFound     ErrorKind = "not_found"    // the archive is not there
	Unrestorable ErrorKind = "unrestorable" // the home holds what no restore could make again
	Changed      ErrorKind = "changed"      // the home changed while it was packed
	Unavailable  ErrorKind = "unavailable"  // the bucket does not answer: nobody's fault
	DiskFull     ErrorKind = "disk_full"    // no room for the home
	NoOrders     ErrorKind = "no_orders"    // the instructions did not arrive whole: whoever sent them went away
	Stopped      ErrorKind = "stopped"      // it was told to end (SIGTERM): the machine shuts down, or somebody meddled
	Failed       ErrorKind = "failed"       // anything else
)
