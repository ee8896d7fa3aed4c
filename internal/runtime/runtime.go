// Package runtime defines the interface to whatever runs the containers and stores
// the volumes. Every implementation passes the conformance suite in runtimetest.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"codehub/internal/workspace"
)

// Runtime runs the containers and stores the volumes of one installation. It
// neither lists nor changes those of other installations or programs on the same
// Docker.
//
// Every call may be repeated: a step that is already done is skipped. An error that
// wraps ErrUnreachable means that the runtime did not respond and nothing is known.
// Every other error is the runtime's answer; one that wraps ErrBusy is transient,
// so that the same call may succeed later.
type Runtime interface {
	// Containers lists all workspace containers of this installation, in any state,
	// with one call to Docker.
	Containers(ctx context.Context) ([]Container, error)

	// Volumes lists all home volumes of this installation with one call per kind of
	// volume, and all unlabelled volumes with the name of a home (Volume.Foreign)
	// unless the workspace also has a home.
	Volumes(ctx context.Context) ([]Volume, error)

	// CreateVolume creates the home volume, seeds it with the image's content at
	// HomeDir, and gives it that directory's owner and mode. It pulls the image if
	// it is missing. A volume with the same claim is left alone if its seeding
	// finished; otherwise it is wiped and seeded again. A volume with that name and
	// another claim is not touched: ErrVolumeMismatch. If a volume has to be wiped
	// or replaced while a container uses it, the error is ErrBusy.
	CreateVolume(ctx context.Context, spec VolumeSpec, progress func(Progress)) error

	// SettleVolume protects a live home from delayed calls that would wipe or
	// remove it, and repairs such protection where an earlier call's was lost. It
	// also releases the proof of seeding, so that Volume.Seeded may be false
	// afterwards. It must be called for restored homes, too.
	SettleVolume(ctx context.Context, id workspace.ID, claim string) error

	// CreateEmptyVolume creates an empty home volume for a restore job. A volume
	// with the same claim is left as it is; another claim is ErrVolumeMismatch.
	CreateEmptyVolume(ctx context.Context, spec VolumeSpec) error

	// MarkRestored records on the volume with this claim that it holds the
	// complete, synced content of the archive key (Volume.Marker). The job that
	// restored it must still exist and have exited with code 0; for an empty
	// archive the volume must be seeded. Otherwise the error is ErrConflict, so
	// that a delayed call has no effect. A missing volume or another claim is
	// ErrVolumeMismatch.
	MarkRestored(ctx context.Context, id workspace.ID, claim, key string) error

	// RemoveVolume removes the home volume with the claim, and the ended jobs that
	// hold it. A missing volume is not an error; another claim is
	// ErrVolumeMismatch, and a volume that any other container uses, running or
	// not, is ErrBusy. The claim must never be used for a live home again, unless
	// Volumes still lists it as complete after the call. From before the first byte
	// is removed, the volume is neither Seeded nor has it a Marker, and it can
	// neither be used by a container nor be restored into. It is listed until its
	// removal is durable. Progress counts the entries removed by this call, if it
	// removes them one by one.
	RemoveVolume(ctx context.Context, id workspace.ID, claim string, progress func(Progress)) error

	// Fingerprint returns a digest of the home's metadata: paths, types, sizes,
	// inodes and change times, but not content (archive.Fingerprint). Equal digests
	// mean that nothing in it has changed. A volume with another claim is
	// ErrVolumeMismatch. It is ErrBusy while a container uses the volume that is
	// neither its holder nor an ended job.
	Fingerprint(ctx context.Context, id workspace.ID, claim string, progress func(Progress)) (string, error)

	// OwnHome gives the files of some users to a uid, and if the home's folder belongs to
	// another user those of that one (archive.ChangeOwner); groups likewise. Other owners
	// stay, as does everything else. The result is durable. A call that was interrupted can
	// be repeated; one for another uid then needs this uid in OwnSpec.From. Progress, if
	// it takes long, counts the entries. Errors as for Fingerprint.
	OwnHome(ctx context.Context, spec OwnSpec, progress func(Progress)) error

	// SetAside renames the volume that has the name of the workspace's home but is
	// not the home with this claim, which frees the name. An empty claim means that
	// the workspace has no home. found is the claim of the observed volume, or
	// empty: a volume with another claim appeared later and is left alone
	// (ErrVolumeMismatch). It returns the new name, or "" if no volume is in the
	// way. Content, owners, modes, times, links, attributes and ACLs are kept, and
	// compared before the name is freed. Volumes of other installations
	// (ErrVolumeMismatch) and volumes used by a running container (ErrConflict,
	// naming the container) are left alone.
	SetAside(ctx context.Context, id workspace.ID, claim, found string, progress func(Progress)) (name string, err error)

	// Asides lists the set-aside volumes. Only administrators remove them.
	Asides(ctx context.Context) ([]Aside, error)

	// Jobs lists the storage jobs of this installation, running or ended, with one
	// call to Docker.
	Jobs(ctx context.Context) ([]Job, error)

	// StartJob starts a storage job: `codehub storage-job` in a container with the
	// volume (read-only for JobArchive and JobBackup) and the one directory or socket through which
	// it reaches the bucket, and no network. In Kubernetes it has no such directory, and
	// reaches the bucket over the network. If a job of the same kind, claim and
	// key exists, running or ended, it is returned instead; one of another claim is
	// ErrConflict. A volume with another claim than spec.VolumeClaim is
	// ErrVolumeMismatch. It is ErrBusy while another container or job uses the
	// workspace's volume. For JobRestore it is ErrConflict if the home is settled
	// or spec.Key was already restored into it. JobRestore first removes the
	// records that the volume is seeded or was restored from another archive, and
	// the ended job of that restore. A job that does not receive its whole input
	// ends with an error. In Kubernetes it reports while a node pulls the job's image, and while
	// no node has room for the job. It is ErrBusy if that lasts, and the job stays.
	//
	// JobBackup needs a settled home (otherwise ErrVolumeMismatch) and runs beside any
	// container that uses it, at a low priority. It is ErrBusy only while another job,
	// or a call that needs the home alone, works on it. No call fails or waits because of a
	// backup: those that need the home alone end one that runs, after which FollowJob
	// returns a code other than 0, or ErrNotFound. JobDrill has an empty folder in place of
	// a home, and conflicts with nothing; its Storage and VolumeClaim are not used.
	StartJob(ctx context.Context, spec JobSpec, progress func(Progress)) (Job, error)

	// FollowJob calls line for every line that the job has printed since it began,
	// once each, until the job ends, and returns the exit code. Lines of its standard
	// error may be among them. The bytes are valid until line returns. ErrNotFound means that the job does not exist or was
	// never started.
	FollowJob(ctx context.Context, jobID string, line func([]byte)) (exit int, err error)

	// RemoveJob kills and removes the job with exactly this ID. A missing job is
	// not an error. The job that restored a home which is marked and not settled
	// yet holds its volume (see RemoveVolume): it is kept, without an error.
	RemoveJob(ctx context.Context, jobID string) error

	// Disks returns the free space of each disk that homes are on, as far as it is
	// on this machine.
	Disks(ctx context.Context) ([]Disk, error)

	// StartContainer creates and starts the container; the image is pulled if it is
	// missing. It returns once the container was started, before the IDE responds.
	// A container of the same claim that was created but not started is started; a
	// running one is left alone; one of another claim, or one that has exited, is
	// ErrConflict. If the volume does not carry spec.VolumeClaim, nothing is
	// started and the error is ErrVolumeMismatch; a volume that Docker created
	// implicitly is removed again. It is ErrBusy while the network has no free
	// address, and while a storage job uses the home. A job that was not started is
	// removed. A Fingerprint or OwnHome of another server fails, or the start is
	// ErrBusy until it ends.
	StartContainer(ctx context.Context, spec ContainerSpec, progress func(Progress)) (Container, error)

	// Newest returns the image that a reference names now: with ask its registry is asked
	// for the digest, otherwise only this machine. Nothing is pulled. The ID is empty for
	// an image that is not on this machine. An error means that it is not known.
	Newest(ctx context.Context, ref string, ask bool) (Image, error)

	// RemoveContainer stops the container with exactly this ID, kills it after
	// grace, and removes it. A missing container is not an error.
	RemoveContainer(ctx context.Context, containerID string, grace time.Duration) error

	// Probe requests the container's /healthz once and returns nil if it responds.
	Probe(ctx context.Context, c Container) error

	Upstreams

	// Logs writes the last tail lines of the container's output (0: all that is
	// kept), and with follow continues until ctx or the container ends. ErrNotFound
	// if there is no container.
	Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error

	// Mark returns this installation's mark with the highest serial. found is false
	// if there is none.
	Mark(ctx context.Context) (m workspace.Mark, found bool, err error)

	// SetMark stores a mark and then removes this installation's marks with lower
	// serials. An existing mark is left as it is.
	SetMark(ctx context.Context, m workspace.Mark) error

	// Prepare checks and repairs the containers' network and its isolation. The
	// controller calls it at every idle interval; StartContainer fails while it
	// does. It is ErrBusy while Docker has no free addresses for the network.
	// An *IsolationError does not keep workspaces from starting.
	Prepare(ctx context.Context) error
}

// Upstreams is the part of a Runtime that finds running workspaces.
type Upstreams interface {
	// Upstream returns the current addresses of a running workspace's IDE and agent.
	// ErrNotFound if no container is running.
	Upstream(ctx context.Context, id workspace.ID) (Upstream, error)
}

// Nodes is implemented by a Runtime whose containers run on several machines.
type Nodes interface {
	// LostNodes lists the nodes that do not respond and have containers or jobs of this
	// installation. Their processes may still run and write.
	LostNodes(ctx context.Context) ([]LostNode, error)

	// NodeIsDead removes the containers and jobs of this installation, and those that check its
	// network, from a node that does not respond. It returns how many. The caller guarantees that
	// none of the node's processes runs any more. ErrNotFound if the node has none, or responds;
	// ErrBusy if it has not responded for a short time only.
	NodeIsDead(ctx context.Context, name string) (removed int, err error)
}

// LostNode is a node that does not respond.
type LostNode struct {
	Name       string
	Since      time.Time
	Workspaces []workspace.ID // whose container or job it has, in order
}

// HomeDir is where the home volume is mounted in every workspace container, IDEPort is
// the port of the IDE in it and AgentPort that of the agent.
const (
	HomeDir   = "/home/coder"
	IDEPort   = workspace.IDEPort
	AgentPort = workspace.AgentPort
)

// AgentCommand is the subcommand of the codehub executable that is the first process
// of every workspace container: `codehub agent -- COMMAND ARG…`.
const AgentCommand = "agent"

// SecretEnv is the environment variable with the container's secret, and
// SecretCookie the cookie in which the proxy sends it.
const (
	SecretEnv    = "HASHED_PASSWORD"
	SecretCookie = "code-server-session"
)

// SetupEnv is the variable of a container whose agent waits for a setup before it starts the IDE
// (ContainerSpec.Setup).
const SetupEnv = "CODEHUB_SETUP"

// ContainerState is the state of a container.
type ContainerState string

const (
	ContainerCreated ContainerState = "created" // not started yet
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited" // ended, dead, or being removed
)

// Container is a workspace container.
type Container struct {
	ID        string // the runtime's own ID, which is never reused
	Workspace workspace.ID
	Claim     string // claim of the STARTING operation that created it
	Image     string // the image it was created from, as given; empty if unknown
	// ImageID and ImageDigest are the image's own ID and its digest in the repository
	// that Image names, if it has one; ImageNote is one of workspace's Image… constants.
	ImageID, ImageDigest, ImageNote string
	ImageGeneration                 int    // of its spec
	EnvDigest                       string // that of the spec it was created from
	Size                            string // name of the spec's size; workspace.DefaultSize for containers of earlier versions
	State                           ContainerState
	Detail                          string // Docker's status text: "Exited (137) 2 minutes ago"
	Addr                            string // host:port of the IDE as the server reaches it; empty unless running
	LostNode                        string // the node that has it, if that does not respond; otherwise empty
}

// Image is one image.
type Image struct {
	ID     string // in Docker; empty if it is not there
	Digest string // in its registry; empty if it is from none
}

// ImageChoice says which of the images that a reference has named over time is used.
type ImageChoice struct {
	// Pinned is the image to use, as long as it can be had: if it is gone, it is pulled
	// by its digest. Without either the image that the reference names is used, with
	// the note workspace.ImageReplaced. Empty: that image is used, without a note.
	Pinned Image
	// Pull pulls that image even if there is one. If that fails, the one that is there
	// is used, with the note workspace.ImageNotPulled.
	Pull       bool
	Generation int // stored with the container
}

// Volume is a home volume.
type Volume struct {
	Workspace workspace.ID
	Storage   string // workspace.StorageDockerVolume, …
	Claim     string // claim of the home it was created for; empty if it has no label
	Seeded    bool   // seeding is known to have finished; see SettleVolume
	Marker    string // archive_key of the completed restore; Seeded is then false
	// Removing: its removal has begun, so it is not complete.
	Removing bool
	// Lost: what it stored its files on is gone. Removing is then set as well, although nothing
	// removes the volume, and both end if that comes back.
	Lost bool
	// Foreign: it has the name of a home, but no claim and no installation label.
	Foreign bool
	// Held: it is protected from `docker volume prune` and from delayed calls. If a
	// live home is not held, it must be settled again.
	Held bool
	// Owner and Name are those of its VolumeSpec; empty if an earlier version
	// created it.
	Owner, Name string
	// Limit is how many bytes the volume can hold; 0: as many as its disk has, or unknown.
	Limit int64
	// OwnDisk: the free space that its file system reports is that of the home alone, so nothing
	// else suffers when there is none.
	OwnDisk bool
	// SharesDisk: OwnDisk, but what the home uses is free space of a disk with other homes.
	SharesDisk bool
}

// Aside is a volume or folder that was set aside; see Runtime.SetAside.
type Aside struct {
	Name      string // of the volume, or the path of the folder
	Workspace workspace.ID
	Storage   string    // workspace.StorageDockerVolume, …
	Since     time.Time // when it was set aside
	Complete  bool      // false: the copy was interrupted and the original still exists
	Bytes     int64     // content of the files; 0 if unknown
	Entries   int64     // files and folders; 0 if unknown
}

// CopyCommand is the subcommand of the codehub executable that copies a home from
// CopyFromDir to CopyToDir. It prints one CopyReport per line, as JSON.
const (
	CopyCommand = "copy-home"
	CopyFromDir = "/from"
	CopyToDir   = "/to"
)

// CopyReport is the progress of a copy. The last report of a complete and verified
// copy has Done and the digest of both.
type CopyReport struct {
	Step    string `json:"step,omitempty"` // StepCopying or StepVerifying
	Bytes   int64  `json:"bytes"`
	Entries int64  `json:"entries"`
	Done    bool   `json:"done,omitempty"`
	Digest  string `json:"digest,omitempty"`
}

// JobKind is the kind of a storage job.
type JobKind string

const (
	JobArchive JobKind = "archive" // volume to bucket
	JobRestore JobKind = "restore" // bucket to volume
	JobBackup  JobKind = "backup"  // volume to bucket, while the home may be in use
	JobDrill   JobKind = "drill"   // bucket to an empty folder that is removed with the job
)

// Valid reports whether there are jobs of this kind.
func (k JobKind) Valid() bool {
	switch k {
	case JobArchive, JobRestore, JobBackup, JobDrill:
		return true
	}
	return false
}

// JobCommand is the subcommand of the codehub executable that runs a storage job.
// The others are the mount points of the home, the archive's directory and the
// directory of the bucket's socket, if given, and for JobArchive and JobBackup an empty
// directory on the file system that a restore would use.
const (
	JobCommand    = "storage-job"
	JobHomeDir    = "/home-volume"
	JobObjectDir  = "/object"
	JobBucketDir  = "/bucket"
	JobScratchDir = "/scratch"
)

// JobSnapshotAt is the environment variable with the time of the snapshot that a backup has instead of the
// home (RFC 3339). It is not set without one.
const JobSnapshotAt = "CODEHUB_SNAPSHOT_AT"

// JobSpec describes a storage job.
type JobSpec struct {
	Workspace   workspace.ID
	Claim       string // of the operation
	Kind        JobKind
	Storage     string
	VolumeClaim string // of the home
	Key         string // archive_key that the job stores or restores
	Input       []byte // the job's standard input, which is not stored
	ObjectDir   string // the archive's own directory, as Docker sees it; empty: none
	BucketDir   string // the directory of the bucket's socket, as Docker sees it; empty: none
	OwnDisk     bool   // as in the home's Volume
	SharesDisk  bool   // as in the home's Volume; a restore then has JobScratchDir, on the shared disk
}

// Job is a storage job.
type Job struct {
	ID          string // the runtime's own ID
	Workspace   workspace.ID
	Claim       string
	Kind        JobKind
	VolumeClaim string
	Key         string
	BucketDir   string // as in its JobSpec
	Running     bool
	Waiting     bool // it is Running, but its program has not begun: StartJob goes on with it
	Created     time.Time
}

// Disk is the free space of a disk.
type Disk struct {
	Name  string // what codehub stores on it, for people
	Free  int64  // bytes available to users other than root
	Total int64  // bytes

	FreeInodes, Inodes int64 // Inodes is 0 on a file system without a limit
}

// VolumeSpec describes a home volume.
type VolumeSpec struct {
	Workspace workspace.ID
	Storage   string
	Claim     string
	Image     string
	// Owner is the owner's user name and Name the workspace's name when the volume
	// is created. They identify the volume if the database does not.
	Owner, Name string
	// Disk is how many bytes the volume should be able to hold; 0: no limit. Not every
	// volume can be limited: see Volume.Limit.
	Disk int64
	// User is the user for whom a missing image is pulled.
	User   string
	Choice ImageChoice
}

// OwnSpec describes a change of the owner of a home's files.
type OwnSpec struct {
	Workspace   workspace.ID
	VolumeClaim string
	UID         uint32   // and gid; not 0
	From        []uint32 // the users whose files it gets; see workspace.Home.UserIDs
}

// ContainerSpec describes a workspace container.
type ContainerSpec struct {
	Workspace   workspace.ID
	UID         uint32 // and gid, of all processes; not 0
	Claim       string
	Image       string
	Storage     string
	VolumeClaim string
	Secret      string // 64 hex digits; see SecretEnv
	User        string // the user for whom a missing image is pulled
	Choice      ImageChoice

	Hostname string // a label of DNS; empty: the runtime's choice
	// Env are variables that replace those of the image; never SecretEnv or HOME.
	Env map[string]string
	// TimeZone is the value of TZ unless Env or the image has one; empty: none.
	TimeZone  string
	EnvDigest string // see Container.EnvDigest
	// Setup: the agent waits for what the caller sends it (agent.Client.Setup).
	Setup bool
	// Size has the limits of the container, and that of its home's volume if it has one, which
	// StartContainer changes first. A volume that cannot be made smaller keeps its limit.
	Size workspace.Size
}

// Upstream is where the server reaches a running workspace.
type Upstream struct {
	ContainerID string
	Addr        string // host:port of the IDE
	Agent       string // host:port of the agent; empty: an earlier version started the container
	Secret      string // of both
}

// Progress is the progress of a long step, for people.
type Progress struct {
	Step   string // one of the Step constants
	Detail string // what the step waits for; empty for most steps

	Done  int64 // bytes; 0 if unknown
	Total int64 // bytes; 0 if unknown

	Entries      int64 // files and directories; 0 if not counted
	EntriesTotal int64 // 0 if unknown

	// Uncounted: the step has made progress since the last report that has no numbers.
	Uncounted bool
}

// Steps reported as progress.
const (
	StepPulling  = "pulling" // may resume after StepWaitingPull
	StepSeeding  = "seeding"
	StepOwning   = "owning" // giving the home to the workspace's uid
	StepCreating = "creating"
	StepStarting = "starting"
	StepWaiting  = "waiting" // for the IDE's first response

	StepMeasuring = "measuring" // whether the archive fits on its disk, before it is stored
	StepPacking   = "packing"
	StepVerifying = "verifying" // reading the stored archive back
	StepChecking  = "checking"  // comparing the home's fingerprint
	StepUnpacking = "unpacking"
	StepRemoving  = "removing" // the home's volume
	StepCopying   = "copying"  // copying a volume that is set aside

	StepWaitingBucket  = "waiting-bucket"  // the bucket refused the last attempt; retrying
	StepWaitingStorage = "waiting-storage" // Detail: the space that the archive needs, and that is available
	StepWaitingPull    = "waiting-pull"    // another image pull comes first
	StepWaitingBuild   = "waiting-build"   // Detail: how far the server is with the image; see MsgBuildStep
	StepBuildFailed    = "build-failed"    // Detail: the image whose build failed; an administrator has to try again
	StepWaitingInUse   = "waiting-in-use"  // Detail: the container that uses the home
	StepWaitingBackend = "waiting-backend" // Detail: the reason, such as no free network address
	StepWaitingRoom    = "waiting-room"    // Detail: why no node has room, or whose scheduling gate holds the Pod
	StepWaitingQuota   = "waiting-quota"   // Detail: which quota is exceeded
	StepWaitingVolume  = "waiting-volume"  // Detail: why the home's volume is not attached
	StepWaitingNode    = "waiting-node"    // Detail: which node does not respond
)

var (
	ErrUnreachable    = errors.New("no response from Docker")
	ErrNotFound       = errors.New("no such container")
	ErrConflict       = errors.New("another container has this workspace's name")
	ErrVolumeMismatch = errors.New("the volume belongs to another home")
	ErrNoSpace        = errors.New("no space left on Docker's disk")

	// ErrBusy is a transient refusal; see BusyError.
	ErrBusy = errors.New("busy")
)

// BusyError is an ErrBusy with a reason.
type BusyError struct {
	Reason    string // a clause for people: "volume ws-… is in use by container backup"
	Container string // the container that uses the home; empty: another cause
	Step      string // the step that shows it; empty: StepWaitingBackend
}

func (e *BusyError) Error() string { return e.Reason }

// Is reports that every BusyError is an ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// MsgOutOfMemory is a part of Container.Detail. Pages translate it.
const MsgOutOfMemory = "The workspace used more memory than its limit of %s."

// MsgBuildStep is a part of the detail of StepWaitingBuild. Pages translate it.
const MsgBuildStep = "step %d of %d:"

// IsolationError reports workspaces that run without the isolation that they should have,
// where the runtime cannot provide it by its own means.
type IsolationError struct {
	Unknown bool // it could not be checked
	Reason  string
}

func (e *IsolationError) Error() string { return e.Reason }

// Sentences of an IsolationError. Pages translate them.
const (
	MsgNoPolicies      = "The namespace %s has no NetworkPolicy that closes the network of workspaces in both directions. Install those of the Helm chart (workspaces.network.enabled)."
	MsgPoliciesIgnored = "The cluster does not enforce the NetworkPolicies of workspaces. It needs a network plug-in that does."
	MsgPoliciesOpen    = "The NetworkPolicies let workspaces reach addresses that they should not. Add these to workspaces.network.deny of the Helm chart."
	MsgReached         = "A test Pod in the place of a workspace reached:"
	MsgUnreached       = "This server does not reach Pods of workspaces. The NetworkPolicies and the network have to permit it."
)

// What a test Pod may reach.
const (
	ReachedWorkspace = "another workspace"
	ReachedAPI       = "the API server"
	ReachedNode      = "the kubelet of its node"
	ReachedMetadata  = "the metadata service"
)

// PullError reports an image that is neither present nor available from its
// registry. Message is Docker's message.
type PullError struct {
	Image   string
	Message string
}

func (e *PullError) Error() string { return "image " + e.Image + ": " + e.Message }

// SlowPullError reports a pull that was cancelled because the registry was too slow.
type SlowPullError struct {
	Image       string
	Rate, Least int64         // bytes per second, measured and required
	Limit       time.Duration // the time limit that the pull exceeded; 0: it was below the rate
}

func (e *SlowPullError) Error() string {
	if e.Limit > 0 {
		return fmt.Sprintf(MsgPullTooLong, e.Image, e.Limit)
	}
	return fmt.Sprintf(MsgPullTooSlow, e.Image, e.Rate>>10, e.Least>>10)
}

// Messages of a PullError for a registry that refuses the server's login, or that wants
// one. Pages translate them.
const (
	MsgLoginRefused = "The registry %s does not provide this image to this server: it refused the server's login, or the login may not read the image. An administrator can correct the login in CODEHUB_REGISTRY_AUTH_FILE."
	MsgLoginNeeded  = "The registry %s does not provide this image without a login, or it has no such image. An administrator can add a login to CODEHUB_REGISTRY_AUTH_FILE."
)

// Messages about the images of a cluster, whose nodes pull them. Pages translate them.
const (
	MsgNodeLogin       = "The registry %s does not provide this image to the cluster: it wants another login, or it has no such image. An administrator can correct the Secrets that CODEHUB_IMAGE_PULL_SECRETS names."
	MsgNodeUnreachable = "The registry %s does not respond to the cluster's nodes."
	MsgNoImage         = "The registry %s has no such image."
	MsgNoPlatform      = "The image is not available for the processor of the cluster's nodes."
	MsgNodePulls       = "The node %s is still downloading an image for this workspace. The operation continues when the download has ended."
	MsgNotDownloaded   = "The node does not have the image %s. Choose another image, or ask an administrator to push it to a registry and to use its name there."
)

// Messages about images of a server with Docker. Pages translate them.
const (
	MsgNoRegistry = "The registry %s cannot be reached from this server. Check the name of the image, or ask an administrator to check the server's network and DNS."
	MsgNotBuilt   = "The server does not have the image %s. An administrator can load it on the server's machine (codehub images load FILE), or build it in a clone (make image)."
	MsgBuiltGone  = "The image %s was built from a devcontainer.json and is no longer on the server. Stop using the file, start the workspace, and use the file again."
	MsgNoDefault  = "The server does not have its default image %s. Choose another image, or ask an administrator to pull it on the server's machine (codehub images pull), or to set CODEHUB_DEFAULT_IMAGE to its name with @sha256:…."
	MsgNoIDE      = "The server does not have the image of the IDE, %s. Ask an administrator to pull it on the server's machine (codehub images pull), or to set CODEHUB_IDE_IMAGE to its name with @sha256:…."
	MsgNotHere    = "The server does not have its default image %s yet, and downloads it when a workspace starts. An administrator can download it now (codehub images pull) or load it from a file (codehub images load FILE)."
	MsgNotPulled  = "The server could not download the image %s. An administrator can load it from a file on the server's machine (codehub images load FILE)."
)

// Messages of a SlowPullError. Pages translate them.
const (
	MsgPullTooSlow = "The download of image %s was cancelled: the registry sent %d KiB per second, and the minimum is %d KiB per second."
	MsgPullTooLong = "The download of image %s was cancelled: it took longer than %s."
)
