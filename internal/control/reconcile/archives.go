package reconcile

import (
	"context"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Archives is the bucket as the controller uses it. An error that wraps
// store.ErrUnavailable means that the bucket did not respond properly; nothing
// can be concluded about the archive.
type Archives interface {
	// Key returns the archive_key for the operation with this claim.
	Key(id workspace.ID, claim string) string

	// State checks whether the archive is present: its .meta is readable, belongs to
	// this workspace and matches the digest and size in the row (if the row has
	// them), and its object has that size. It returns ArchiveMissing if either is
	// absent, and ArchiveUnknown with every error.
	State(ctx context.Context, row workspace.Workspace) (lifecycle.Archive, error)

	// Meta reads the .meta of an archive. It returns store.ErrNotFound or
	// archive.ErrCorrupted.
	Meta(ctx context.Context, key string) (*archive.Meta, error)

	// ArchiveJob adds to spec how the job reaches the bucket: Input, ObjectDir and
	// BucketDir. owner is the user name of the workspace's owner. RestoreJob does
	// the same; meta is that of row's archive.
	ArchiveJob(ctx context.Context, row workspace.Workspace, owner string, spec *runtime.JobSpec) error
	RestoreJob(ctx context.Context, row workspace.Workspace, meta *archive.Meta, spec *runtime.JobSpec) error

	// Room returns how many bytes archives may take of their disk; math.MaxInt64 if they are
	// not in a folder.
	Room() (int64, error)

	// Reaches reports whether the job can reach the bucket: directly, or through
	// the relay of this server.
	Reaches(j runtime.Job) bool

	// ReadBack reads the stored archive to its end and compares it with its .meta,
	// and the .meta with made, the job's result. It returns archive.ErrCorrupted if
	// they differ.
	ReadBack(ctx context.Context, key string, made archive.Stats, progress archive.Progress) (*archive.Meta, error)

	// PutEmpty stores the archive and .meta of a workspace that never had a home,
	// and reads them back.
	PutEmpty(ctx context.Context, row workspace.Workspace, owner string) (*archive.Meta, error)
}
