package reconcile

import (
	"context"

	"codehub/internal/archive"
	"codehub/internal/lifecycle"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Archives is the bucket as the controller uses it. Errors that wrap
// archive.ErrUnavailable mean that it did not answer as a bucket should, from
// which nothing follows.
type Archives interface {
	// Key is the archive_key of what an operation of this claim makes.
	Key(id workspace.ID, claim string) string

	// Look finds out whether the archive is there: its .meta that can be read,
	// is of this workspace and says what the row says of digest and size (where
	// it says anything), and its object of that size. It is ArchiveMissing if
	// either is not there. On an error it is ArchiveUnknown.
	Look(ctx context.Context, row workspace.Workspace) (lifecycle.Archive, error)

	// Meta reads the .meta of an archive. archive.ErrNotFound,
	// archive.ErrCorrupted.
	Meta(ctx context.Context, key string) (*archive.Meta, error)

	// ArchiveJob adds to spec how the job of row's claim reaches the bucket:
	// Input, ObjectDir and BucketDir. owner is the name of the workspace's
	// owner. RestoreJob likewise; meta is that of row's archive.
	ArchiveJob(ctx context.Context, row workspace.Workspace, owner string, spec *runtime.JobSpec) error
	RestoreJob(ctx context.Context, row workspace.Workspace, meta *archive.Meta, spec *runtime.JobSpec) error

	// Reaches reports whether this server is who relays what the job asks of the
	// bucket, if it asks through a server at all.
	Reaches(j runtime.Job) bool

	// ReadBack reads the stored archive back to its end and compares it with
	// its .meta, and that with made, what the job says that it stored
	// (design §3.8). archive.ErrCorrupted if they differ.
	ReadBack(ctx context.Context, key string, made archive.Stats, progress archive.Progress) (*archive.Meta, error)

	// PutEmpty stores the archive of a workspace that never had a home, and its
	// .meta, and reads it back.
	PutEmpty(ctx context.Context, row workspace.Workspace, owner string) (*archive.Meta, error)
}
