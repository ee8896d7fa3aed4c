// Package runtime is the seam to what runs containers and keeps volumes:
// Docker on one machine, Kubernetes on many (design §1). Every make of it
// passes the conformance suite in runtimetest.
package runtime

import (
	"context"
	"errors"
	"io"
	"time"

	"codehub/internal/workspace"
)

// Runtime runs the containers and keeps the volumes of one installation; what
// other installations or people made on the same backend it neither lists nor
// touches.
//
// Every call may be repeated: a step that was already done is done (design
// §3.6). Errors that wrap ErrUnreachable mean that the backend did not answer
// and nothing is known; every other error is the backend's own "no". One that
// wraps ErrBusy passes by itself: the same call may succeed later.
type Runtime interface {
	// Containers lists every workspace container of this installation, in
	// whatever state, with one call to the backend.
	Containers(ctx context.Context) ([]Container, error)

	// Volumes lists every home volume of this installation, with one call per
	// kind of volume, and every volume with a home's name that carries no label
	// (Volume.Foreign), unless the workspace has a home as well.
	Volumes(ctx context.Context) ([]Volume, error)

	// CreateVolume makes the home volume, seeds it with what the image holds
	// at HomeDir and gives it that folder's owner and mode. The image is
	// pulled if it is missing. If a volume with the same claim is there but
	// its seeding did not finish, it is wiped and seeded again; finished, it
	// is left alone. A volume by that name with another claim is
	// ErrVolumeMismatch and is not touched. One that has to be wiped or taken
	// over while a container uses it is ErrBusy.
	CreateVolume(ctx context.Context, spec VolumeSpec, progress func(Progress)) error

	// SettleVolume makes sure that a home which is recorded as live is never
	// wiped or removed by a call that comes too late, and drops what only proved
	// that it was seeded (Volume.Seeded may be false from then on). It is for
	// restored homes as well, and mends what was lost of an earlier call.
	SettleVolume(ctx context.Context, id workspace.ID, claim string) error

	// CreateEmptyVolume makes the home volume for a restore, with nothing in
	// it. One with the same claim that is there is left as it is; one with
	// another claim is ErrVolumeMismatch. A job is what fills it.
	CreateEmptyVolume(ctx context.Context, spec VolumeSpec) error

	// MarkRestored records on the volume with this claim that the archive key
	// is its content, whole and synced (Volume.Marker). The job that restored
	// it must still be there, ended with code 0, or the volume be a seeded one
	// (for an archive of nothing), else ErrConflict: so a mark that comes too
	// late is none. A volume that is absent or another's is ErrVolumeMismatch.
	MarkRestored(ctx context.Context, id workspace.ID, claim, key string) error

	// RemoveVolume removes the home volume if it carries the claim, and the
	// ended jobs that hold it; one that is absent is fine, one with another
	// claim is ErrVolumeMismatch, and one that any other container uses, running
	// or not, is ErrBusy. A claim that it was called
	// for must never be live again, unless Volumes still lists it as complete
	// after the call has ended. From before the first byte of the content
	// goes the volume is neither Seeded nor has it a Marker, and nothing is
	// started on it or restored into it. It is listed until its removal outlasts
	// a power cut. Progress counts the entries that this call has seen go.
	RemoveVolume(ctx context.Context, id workspace.ID, claim string, progress func(Progress)) error

	// Fingerprint returns a digest of what the home volume holds: paths, kinds,
	// sizes, inodes and change times, but no content (archive.Fingerprint). Equal
	// digests mean that nothing in it has changed in between. The volume must
	// carry the claim, else ErrVolumeMismatch. It is ErrBusy while a container
	// uses the volume that is neither what holds the home nor an ended job.
	Fingerprint(ctx context.Context, id workspace.ID, claim string, progress func(Progress)) (string, error)

	// SetAside keeps what has the name of the workspace's home and is not the
	// home with this claim under another name, and frees the home's name. An
	// empty claim means that the workspace has no home. found is the claim of
	// what was seen in the way, empty for none: a volume with another one has
	// come since and is left alone (ErrVolumeMismatch). It returns the new name,
	// or "" if nothing is in the way. Content, owners, modes, times, links,
	// attributes and ACLs are kept, and compared before the name is freed;
	// nothing of another installation is touched (ErrVolumeMismatch), nor what a
	// running container uses (ErrConflict; the message names the container).
	SetAside(ctx context.Context, id workspace.ID, claim, found string, progress func(Progress)) (name string, err error)

	// Asides lists what SetAside has kept. Nothing removes it but people.
	Asides(ctx context.Context) ([]Aside, error)

	// Jobs lists the storage jobs of this installation, running or ended, with
	// one call to the backend.
	Jobs(ctx context.Context) ([]Job, error)

	// StartJob starts a storage job: `codehub storage-job` in a container of
	// its own that has the volume (read-only for JobArchive), the one folder
	// or socket by which it reaches the bucket, and no network. The job of the
	// same kind, claim and key, running or ended, is returned instead if there
	// is one; one of another claim is ErrConflict. The volume must carry
	// spec.VolumeClaim, else ErrVolumeMismatch. It is ErrBusy while a container,
	// whosever it is, or another job uses the workspace's volume. For JobRestore
	// it is ErrConflict if the home is settled or spec.Key was restored into it
	// already. JobRestore clears what marks the volume as seeded, or restored
	// from something else, before it starts; the ended job of that goes, too.
	// If the job did not get its whole input it ends by itself and says so.
	StartJob(ctx context.Context, spec JobSpec) (Job, error)

	// FollowJob gives every line that the job has printed since it began, each
	// once, and goes on until it ends; then it returns the exit code. The bytes
	// are good until line returns. ErrNotFound if there is no such job (any
	// more), or it was never started.
	FollowJob(ctx context.Context, jobID string, line func([]byte)) (exit int, err error)

	// RemoveJob ends the job with exactly this backend id, by force, and
	// removes it. One that is gone is fine. The job that restored a home which
	// is marked and not settled yet holds its volume (see RemoveVolume): it
	// stays, and that is no error.
	RemoveJob(ctx context.Context, jobID string) error

	// Disks tells how full the disks are that homes are on, each once, as far
	// as this process can see them: nothing is told of another machine's.
	Disks(ctx context.Context) ([]Disk, error)

	// StartContainer makes the container and starts it; the image is pulled
	// if it is missing. It returns once the container was started, not once
	// it answers. A container of the same claim that was made but not started
	// is started; one that runs is left alone; one of another claim, or one
	// that has exited, is ErrConflict. The volume must carry spec.VolumeClaim,
	// else nothing is started and the error is ErrVolumeMismatch (a volume
	// that the backend made up for the occasion is removed again). It is ErrBusy
	// while the network has no free address.
	StartContainer(ctx context.Context, spec ContainerSpec, progress func(Progress)) (Container, error)

	// RemoveContainer stops the container with exactly this backend id, after
	// at most grace by force, and removes it. One that is gone is fine.
	RemoveContainer(ctx context.Context, containerID string, grace time.Duration) error

	// Probe asks the container's /healthz once; nil means that it answered.
	Probe(ctx context.Context, c Container) error

	// Upstream says where a running workspace's IDE is reached, as the backend
	// tells it now (design §8). ErrNotFound if no container runs.
	Upstream(ctx context.Context, id workspace.ID) (Upstream, error)

	// Logs writes what the container printed, at most the newest tail lines
	// (0 = all that is kept), and goes on with follow until ctx or the
	// container ends. ErrNotFound if there is no container.
	Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error

	// Mark returns the newest mark of this installation: the one with the
	// highest serial. found is false if the backend has none.
	Mark(ctx context.Context) (m workspace.Mark, found bool, err error)

	// SetMark stores a mark and then removes those of this installation with
	// lower serials. A mark that is there already is left as it is.
	SetMark(ctx context.Context, m workspace.Mark) error

	// Prepare checks what has to stand around the containers (the network and
	// its wall, design §11) and repairs it. The controller calls it at every
	// tick; StartContainer refuses while it fails. It is ErrBusy while the
	// backend has no free addresses for the network.
	Prepare(ctx context.Context) error
}

// HomeDir is where the home volume is mounted in every workspace container,
// and IDEPort where the IDE listens there (design §11).
const (
	HomeDir = "/home/coder"
	IDEPort = 8080
)

// SecretEnv is the environment variable that carries the container's secret,
// and SecretCookie the cookie by which the proxy proves that it knows it.
const (
	SecretEnv    = "HASHED_PASSWORD"
	SecretCookie = "code-server-session"
)

// ContainerState is what the backend says of a container.
type ContainerState string

const (
	ContainerCreated ContainerState = "created" // made, not started yet
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited" // ended, dead, or being removed
)

// Container is a workspace container as the backend lists it.
type Container struct {
	ID        string // the backend's own id: names this container and no later one
	Workspace workspace.ID
	Claim     string // claim id of the STARTING that made it
	State     ContainerState
	Detail    string // the backend's words, for people: "Exited (137) 2 minutes ago"
	Addr      string // host:port of the IDE as the server reaches it; empty unless running
}

// Volume is a home volume as the backend lists it.
type Volume struct {
	Workspace workspace.ID
	Storage   string // workspace.StorageDockerVolume, …
	Claim     string // claim id of the home it was made for; empty if it carries none
	Seeded    bool   // the seeding is known to have finished; see SettleVolume
	Marker    string // archive_key of what was restored into it, if that has finished; then Seeded is false
	// Removing is whether its removal has begun: it is never complete again.
	Removing bool
	// Foreign is whether it only has a home's name: it carries no claim, and no
	// sign of which installation it belongs to.
	Foreign bool
	// Held is whether a live home is kept from being removed by whoever tidies up
	// the backend, or comes too late. If it is not, it is to be settled (again).
	Held bool
	// Owner and Name are those of the VolumeSpec that it was made by; empty if
	// it was made before they were kept.
	Owner, Name string
}

// Aside is a volume or folder that was set aside; see Runtime.SetAside.
type Aside struct {
	Name      string // of the volume, or the path of the folder
	Workspace workspace.ID
	Storage   string    // workspace.StorageDockerVolume, …
	Since     time.Time // when it was set aside
	Complete  bool      // false: the copy was cut off, and its original is still there
	Bytes     int64     // content of the files; 0 if unknown
	Entries   int64     // files and folders; 0 if unknown
}

// CopyCommand is the subcommand by which the codehub executable copies a home
// from CopyFromDir to CopyToDir. It prints a CopyReport a line, as JSON.
const (
	CopyCommand = "copy-home"
	CopyFromDir = "/from"
	CopyToDir   = "/to"
)

// CopyReport is how far a copy is. The last one of a copy that is complete and
// was compared with its original has Done and the digest of both.
type CopyReport struct {
	Step    string `json:"step,omitempty"` // StepCopying or StepVerifying
	Bytes   int64  `json:"bytes"`
	Entries int64  `json:"entries"`
	Done    bool   `json:"done,omitempty"`
	Digest  string `json:"digest,omitempty"`
}

// JobKind is what a storage job does.
type JobKind string

const (
	JobArchive JobKind = "archive" // volume to bucket
	JobRestore JobKind = "restore" // bucket to volume
)

// JobCommand is the subcommand by which the codehub executable becomes a
// storage job. The home, the folder of the one archive and the folder of the
// bucket's socket are mounted where the others say, the latter two if given; for
// a JobArchive also an empty folder on the file system that a restore would use.
const (
	JobCommand    = "storage-job"
	JobHomeDir    = "/home-volume"
	JobObjectDir  = "/object"
	JobBucketDir  = "/bucket"
	JobScratchDir = "/scratch"
)

// JobSpec says which storage job to run.
type JobSpec struct {
	Workspace   workspace.ID
	Claim       string // of the operation
	Kind        JobKind
	Storage     string
	VolumeClaim string // of the home
	Key         string // archive_key: what is made, or restored
	Input       []byte // what the job reads from its standard input; kept nowhere
	ObjectDir   string // the archive's own folder, as the backend sees it; empty: none
	BucketDir   string // the folder of the bucket's socket, as the backend sees it; empty: none
}

// Job is a storage job as the backend lists it.
type Job struct {
	ID          string // the backend's own id
	Workspace   workspace.ID
	Claim       string
	Kind        JobKind
	VolumeClaim string
	Key         string
	BucketDir   string // as in the JobSpec that it was started by
	Running     bool
	Created     time.Time
}

// Disk is how full a disk is.
type Disk struct {
	Name  string // what of codehub's is on it, for people
	Free  int64  // bytes that are left for what is not root's
	Total int64  // bytes
}

// VolumeSpec says which volume to make.
type VolumeSpec struct {
	Workspace workspace.ID
	Storage   string
	Claim     string
	Image     string
	// Owner is the owner's username and Name the workspace's name. They are
	// kept with the volume, so that it can be told whose it is when the
	// database does not know it. Later changes of either are not followed.
	Owner, Name string
}

// ContainerSpec says which container to start.
type ContainerSpec struct {
	Workspace   workspace.ID
	Claim       string
	Image       string
	Storage     string
	VolumeClaim string
	Secret      string // 64 hex digits; see SecretEnv
}

// Upstream is where and how the proxy reaches an IDE.
type Upstream struct {
	ContainerID string
	Addr        string // host:port
	Secret      string
}

// Progress is how far a long step is, for people.
type Progress struct {
	Step   string // one of the Step constants
	Detail string // what the step waits for, in a few words; empty for most steps

	Done  int64 // bytes; 0 if unknown
	Total int64 // bytes; 0 if unknown

	Entries      int64 // files and folders done; 0 if they do not count
	EntriesTotal int64 // 0 if unknown
}

// Steps that are reported as progress.
const (
	StepPulling  = "pulling"
	StepSeeding  = "seeding"
	StepCreating = "creating"
	StepStarting = "starting"
	StepWaiting  = "waiting" // for the IDE's first answer

	StepPacking   = "packing"
	StepVerifying = "verifying" // the stored archive is read back
	StepChecking  = "checking"  // whether the home is what was packed
	StepUnpacking = "unpacking"
	StepRemoving  = "removing" // the home's volume
	StepCopying   = "copying"  // a volume that is set aside

	StepWaitingBucket  = "waiting-bucket"  // it has refused the last attempt; the next one comes
	StepWaitingInUse   = "waiting-in-use"  // Detail: the container that uses the home
	StepWaitingBackend = "waiting-backend" // Detail: the backend's reason, such as no free network address
)

var (
	ErrUnreachable    = errors.New("the container backend does not answer")
	ErrNotFound       = errors.New("no such container")
	ErrConflict       = errors.New("another container has this workspace's name")
	ErrVolumeMismatch = errors.New("the volume is not the one this home was put in")
	ErrNoSpace        = errors.New("the container backend has no space left on its disk")

	// ErrBusy is a refusal for a cause that passes by itself; see BusyError.
	ErrBusy = errors.New("busy")
)

// BusyError is an ErrBusy that says why.
type BusyError struct {
	Reason    string // a clause for people: "volume ws-… is in use by container backup"
	Container string // the name of the container that uses the home; empty: the cause is another one
}

func (e *BusyError) Error() string { return e.Reason }

// Is reports that every BusyError is an ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// PullError is an image that is neither there nor to be had. Message is the
// backend's own words.
type PullError struct {
	Image   string
	Message string
}

func (e *PullError) Error() string { return "image " + e.Image + ": " + e.Message }
