package workspace

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// ID identifies a workspace: a UUIDv7 in its canonical lower-case form.
type ID string

// Backends that keep volumes.
const (
	StorageDockerVolume = "docker-volume"
	StorageLocalDir     = "local-dir"
	StorageKubernetes   = "k8s-pvc"
)

// Ways in which a workspace can be recovered from ERROR.
const (
	RecoverAfresh = "afresh" // clear the error and observe again
	RecoverEmpty  = "empty"  // replace a lost home by an empty one
	// RecoverArchive: replace a lost home by the archive that RecoverFrom names.
	RecoverArchive = "archive"
	// RecoverSetAside: keep the volume that blocks the home under another name.
	RecoverSetAside = "set_aside"
)

// SecretsMark separates the digests in Workspace.RunningEnv.
const SecretsMark = "+"

// Workspace is one row: the last observation of one development environment,
// and the requests for it. docs/database.md says who writes which field.
type Workspace struct {
	ID             ID
	OwnerID        string
	Name           string
	Description    string
	Memo           string
	ImageRef       string
	StorageBackend string
	UIDOffset      int64 // see UIDRange; set at creation
	// Project is what the workspace was created to work on; nil: nothing. Set at creation, and by an
	// update of the template.
	Project *Project

	// Written by the workspace controller alone.
	Home           Home
	Conditions     Conditions
	Phase          Phase
	PhaseChangedAt time.Time
	Operation      Operation
	OpID           string // claim id of the running operation; empty when Operation is NONE
	OpStartedAt    *time.Time
	ArchiveOpID    string // claim id of the last ARCHIVING
	ArchiveKey     string
	ArchiveDigest  string
	ArchiveSize    int64
	ErrorReason    ErrorReason
	ErrorMessage   string
	ErrorCount     int
	RetryAt        *time.Time
	StopReason     string
	Progress       *Progress // of the running operation; nil when nothing is known
	// RunningImage is the image of the container as last observed; empty if there
	// is none, or if its image is not known. ImageRef is that of the next one.
	RunningImage string
	// ImagePin is the image with which the workspace was last started; nil if it was not,
	// or if that is not known. See lifecycle.PinOf.
	ImagePin *ImagePin
	// ImageNewer is the ID or the digest of the image that ImageRef names now, if that is
	// another one than the pinned image; otherwise empty.
	ImageNewer string
	// RunningEnv is the digest of the workspace's own environment variables with
	// which the container was created, followed by SecretsMark and that of its secrets if it has
	// any; empty if there were none, or no container.
	RunningEnv string

	// RunningSize is the name of the size with which the container was created; empty if
	// there is none. Size is that of the next one.
	RunningSize string

	// Written by the API layer alone, as is ImageRef.
	Size          string // name of the size; empty: the default one
	PreviousImage string // ImageRef before its last change; empty: it was never changed
	// ImageGeneration counts the requests for another image. A pin of an earlier
	// generation no longer holds.
	ImageGeneration int
	// ImagePull: the first start of this generation pulls the image, also if there is one.
	ImagePull    bool
	DesiredState DesiredState
	DesiredCause string       // CauseIdle or CauseUnused if a TTL set DesiredState, CauseRestart for a restart; otherwise empty
	NextDesired  DesiredState // queued desired state; empty: none
	DeletedAt    *time.Time
	GraceBegan   *time.Time // since when the grace of the deletion counts, by the database's clock; nil: since DeletedAt
	LastAccessAt *time.Time
	LastAccess   string // kind of the last access
	KeepAwakeTil *time.Time
	// AwakeWhileWorking: processes that are at work count as activity.
	AwakeWhileWorking bool

	Env        map[string]string // environment variables of the next container, besides the server's; secret
	TimeZone   string            // of the owner at the last request for a start, an IANA name; empty: unknown
	StandbyTTL *int              // seconds; nil = the server's default, 0 = never
	ArchiveTTL *int
	Template   *TemplateUse // nil: it was created without one; its values may be secrets
	// BackupInterval is the seconds between two backups of the home; nil: the server's, 0: none.
	BackupInterval *int
	BackupKeep     string // which backups are kept; empty: the server's rule. See ParseKeep

	// HomeBytes and ArchivesBytes are the sizes of the home's volume and of all archives when they
	// were last measured; nil: not measured yet.
	HomeBytes, ArchivesBytes *int64
	// HomeLimit is the limit in bytes that the home's volume has, as last observed; 0: it may
	// grow as long as its disk has space. Written by the controller.
	HomeLimit int64
	// FreeingAt is the last start over the limit of the home or of the owner, which was requested
	// to free space, and FreeingFrom the HomeBytes at that time; see lifecycle.MayFree. Written
	// by the API layer.
	FreeingAt   *time.Time
	FreeingFrom int64

	// Unwatched is how much of the time since lifecycle.IdleSince no server
	// recorded activity: it does not count toward idle timeouts. Computed when the row
	// is read.
	Unwatched time.Duration

	// Requests: set by the API layer, cleared by the controller, which clears
	// exactly the request that it saw.
	RecoverRequestedAt *time.Time
	RecoverAction      string
	RecoverFrom        *Archive // with RecoverArchive alone
	// RestoreFrom is the backup that is to replace the home, which is archived first; nil: none.
	RestoreFrom          *Archive
	CancelRequestedAt    *time.Time
	ForceStopRequestedAt *time.Time

	CreatedAt time.Time
	UpdatedAt time.Time
}

// ImagePin names exactly one image.
type ImagePin struct {
	Ref        string `json:"ref"`              // ImageRef when the workspace was started
	ID         string `json:"id"`               // in Docker
	Digest     string `json:"digest,omitempty"` // in its registry; empty: it was not pulled from one
	Generation int    `json:"generation"`       // ImageGeneration when the workspace was started
	Note       string `json:"note,omitempty"`   // one of the Image… constants, or empty
}

// Why the image of the last start is not the one that was asked for.
const (
	ImageReplaced  = "replaced"   // the pinned image was gone: it is the one that the reference named
	ImageNotPulled = "not_pulled" // an update could not be pulled: it is the one that was there
	ImageInterim   = "interim"    // the default image was still being built: it is the slim one
)

// DropSecrets removes the values that only the owner may see, also in the Devcontainer.
func (w *Workspace) DropSecrets() {
	w.Env, w.Memo, w.Template = nil, "", nil
	if w.Project != nil && w.Project.Devcontainer != nil {
		project, used := *w.Project, *w.Project.Devcontainer
		used.Given.Env, used.Before.Env = nil, nil
		project.Devcontainer = &used
		w.Project = &project
	}
}

// Maximum lengths of texts.
const (
	MaxName        = 255 // characters
	MaxDescription = 4 << 10
	MaxMemo        = 64 << 10
)

// Edit holds new values of the texts that the owner of a workspace edits; nil: unchanged.
type Edit struct{ Name, Description, Memo *string }

// Text describes such a text, for all who check, show or save it.
type Text struct {
	Name     string // in the API, of the column, in forms and of their labels (field.NAME)
	Max      int    // length in bytes; in characters of a line
	Line     bool   // one line, which a tick reads too
	Required bool   // a line that is not empty
	Rows     int    // of its input on pages; 0: a line's
	New      func(*Edit) **string
	Current  func(*Workspace) *string
}

// Texts describes the fields of Edit.
var Texts = []Text{
	{"name", MaxName, true, true, 0, func(e *Edit) **string { return &e.Name }, func(w *Workspace) *string { return &w.Name }},
	{"description", MaxDescription, false, false, 0, func(e *Edit) **string { return &e.Description }, func(w *Workspace) *string { return &w.Description }},
	{"memo", MaxMemo, false, false, 5, func(e *Edit) **string { return &e.Memo }, func(w *Workspace) *string { return &w.Memo }},
}

// Apply changes the texts of w. It reports whether one of them changed.
func (e Edit) Apply(w *Workspace) (changed bool) {
	for _, t := range Texts {
		if from, to := *t.New(&e), t.Current(w); from != nil && *from != *to {
			*to, changed = *from, true
		}
	}
	return changed
}

// Optional is a value to set, to nil to clear it, or to leave as it is.
type Optional[T any] struct {
	Set   bool
	Value *T
}

// Apply sets *to if o is set.
func (o Optional[T]) Apply(to **T) {
	if o.Set {
		*to = o.Value
	}
}

// ContainerName is the name of the workspace's container: deterministic, so
// that a retry finds what an earlier attempt created.
func (id ID) ContainerName() string { return "codehub-ws-" + string(id) }

// DockerName is the ContainerName in Docker, whose DNS tells all containers of a network each
// other's names, for an address (PTR) too. A label of DNS has at most 63 bytes, so this name can
// neither be asked for nor be in an answer. Earlier versions used ContainerName.
func (id ID) DockerName() string { return id.ContainerName() + "-not-a-name-in-dns" }

// VolumeName is the name of the workspace's home volume.
func (id ID) VolumeName() string { return "ws-" + string(id) + "-home" }

// IDOfVolume returns the workspace whose home's volume has this name. ok is false for a
// name of another kind.
func IDOfVolume(name string) (id ID, ok bool) {
	rest, begins := strings.CutPrefix(name, "ws-")
	text, ends := strings.CutSuffix(rest, "-home")
	if !begins || !ends || !ValidID(text) {
		return "", false
	}
	return ID(text), true
}

// Host is a host of a workspace: that of its IDE (port 0), or of a port in it.
type Host struct {
	ID   ID
	Port int
}

// ValidID reports whether s is a UUID in canonical lower-case form. Paths,
// names and labels are made from ids, so everything that comes from outside
// is checked with it.
func ValidID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// Progress is how far the running operation is, for people.
type Progress struct {
	Step   string `json:"step"`
	Detail string `json:"detail,omitempty"` // what the step waits for, such as a container's name
	Done   int64  `json:"done"`             // bytes; 0 if unknown
	Total  int64  `json:"total"`            // bytes; 0 if unknown

	Entries      int64 `json:"entries,omitempty"`       // files and folders done; 0 if they do not count
	EntriesTotal int64 `json:"entries_total,omitempty"` // 0 if unknown
	Rate         int64 `json:"rate,omitempty"`          // recent bytes per second; 0 if unknown
	SecondsLeft  int64 `json:"seconds_left,omitempty"`  // estimated, at least 1; 0 if unknown

	Steps []ProgressStep `json:"steps,omitempty"` // of the operation so far, the current one last
}

// AwaitsImage reports whether an operation has no image yet in a step: a pull runs or waits, or
// the image is being built, which may take any time.
func AwaitsImage(step string) bool {
	switch step {
	case "pulling", "waiting-pull", "waiting-build", "build-failed":
		return true
	}
	return false
}

// ProgressStep is a step that an operation has reached.
type ProgressStep struct {
	Step    string    `json:"step"`
	BeganAt time.Time `json:"began_at"`
	Done    int64     `json:"done,omitempty"` // bytes when it ended; 0 if unknown
}

// Equal reports whether both are the same progress. Either may be nil.
func (p *Progress) Equal(q *Progress) bool {
	if p == nil || q == nil {
		return p == q
	}
	a, b := *p, *q
	a.Steps, b.Steps = nil, nil
	return reflect.DeepEqual(a, b) && slices.EqualFunc(p.Steps, q.Steps, func(a, b ProgressStep) bool {
		return a.Step == b.Step && a.BeganAt.Equal(b.BeganAt) && a.Done == b.Done
	})
}

// Archive is one archive of a workspace's home, as the bucket and the database
// know it: a generation.
type Archive struct {
	Key         string    `json:"key"`
	WorkspaceID ID        `json:"workspace_id"`
	OpID        string    `json:"archive_op_id"` // of the ARCHIVING that made it
	Digest      string    `json:"digest"`        // SHA-256 of home.tar.zst, in hex
	Size        int64     `json:"size"`          // bytes of home.tar.zst
	Entries     int64     `json:"entries"`
	Skipped     int64     `json:"skipped,omitempty"` // sockets, FIFOs and devices of the home, which are not archived
	CreatedAt   time.Time `json:"created_at"`
	Found       bool      `json:"found,omitempty"` // found in the bucket, not made by an operation that this database remembers
}
