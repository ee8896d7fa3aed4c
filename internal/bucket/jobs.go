package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storagejob"
	"codehub/internal/workspace"
)

const (
	// maxArchive is the largest archive that S3 can take: 10,000 parts of a
	// size of which one fits into the memory of a job.
	maxArchive = 1 << 40
	// urlsValid is how long the URLs of a job are good for. A job that takes
	// longer fails as if the bucket were not there. (Those that are signed with
	// a role's credentials end with these, whatever is asked for.)
	urlsValid = 72 * time.Hour
)

// ArchiveJob adds to spec how the job of row's claim reaches the bucket: Input,
// ObjectDir and BucketDir. owner is the name of the workspace's owner. It is to
// be called only if a job is to be started: on S3 it begins an upload.
func (b *Bucket) ArchiveJob(ctx context.Context, row workspace.Workspace, owner string, spec *runtime.JobSpec) error {
	key := b.Key(row.ID, row.OpID)
	if _, err := b.own(key); err != nil {
		return err
	}
	if err := b.right(ctx); err != nil {
		return err
	}
	orders := storagejob.Spec{Kind: string(runtime.JobArchive), Claim: row.OpID, Meta: b.newMeta(row, owner), MinFree: b.MinFree / 2}
	if b.presigner == nil {
		if err := b.makeFolder(ctx, key); err != nil {
			return err
		}
		spec.ObjectDir = b.hostFolderOf(key)
		return give(spec, orders)
	}
	upload, err := b.presigner.PresignUpload(ctx, key, maxArchive, urlsValid)
	if err != nil {
		return err
	}
	meta, err := b.presigner.PresignPut(ctx, archive.MetaKey(key), urlsValid)
	if err != nil {
		return err
	}
	orders.Signed = &storagejob.Signed{Upload: upload, Meta: meta}
	spec.BucketDir = b.HostSocketDir
	return give(spec, orders)
}

// RestoreJob adds to spec how a job reads row's archive, of which meta is the
// .meta.
func (b *Bucket) RestoreJob(ctx context.Context, row workspace.Workspace, meta *archive.Meta, spec *runtime.JobSpec) error {
	if _, err := b.own(row.ArchiveKey); err != nil {
		return err
	}
	if err := describes(meta, row); err != nil {
		return err
	}
	orders := storagejob.Spec{Kind: string(runtime.JobRestore), Claim: row.OpID, Meta: *meta, MinFree: b.MinFree}
	if b.presigner == nil {
		spec.ObjectDir = b.hostFolderOf(row.ArchiveKey)
		return give(spec, orders)
	}
	get, err := b.presigner.PresignGet(ctx, row.ArchiveKey, urlsValid)
	if err != nil {
		return err
	}
	orders.Signed = &storagejob.Signed{Get: get}
	spec.BucketDir = b.HostSocketDir
	return give(spec, orders)
}

func give(spec *runtime.JobSpec, orders storagejob.Spec) error {
	var input bytes.Buffer
	e := json.NewEncoder(&input)
	e.SetEscapeHTML(false) // of thousands of URLs
	if err := e.Encode(orders); err != nil {
		return fmt.Errorf("encode job instructions: %w", err)
	}
	spec.Input = input.Bytes()
	return nil
}

func (b *Bucket) hostFolderOf(key string) string {
	return filepath.Join(b.HostFolder, filepath.FromSlash(path.Dir(key)))
}

// newMeta is the .meta of what row's claim makes, but for what is counted.
func (b *Bucket) newMeta(row workspace.Workspace, owner string) archive.Meta {
	return archive.Meta{
		Format: archive.Format, CodehubVersion: b.Version,
		WorkspaceID: string(row.ID), WorkspaceName: row.Name, Owner: owner,
		ArchiveOpID: row.OpID, CreatedAt: time.Now().UTC().Truncate(time.Second),
	}
}

// PutEmpty stores the archive of a workspace that never had a home, and its
// .meta, and reads it back.
func (b *Bucket) PutEmpty(ctx context.Context, row workspace.Workspace, owner string) (*archive.Meta, error) {
	key := b.Key(row.ID, row.OpID)
	if _, err := b.own(key); err != nil {
		return nil, err
	}
	if err := b.right(ctx); err != nil {
		return nil, err
	}
	content, stats, err := archive.Empty()
	if err != nil {
		return nil, err
	}
	meta := b.newMeta(row, owner)
	meta.Describe(stats)
	encoded, err := meta.Encode()
	if err != nil {
		return nil, err
	}
	if _, err := b.Store.Put(ctx, key, bytes.NewReader(content)); err != nil {
		return nil, err
	}
	if _, err := b.Store.Put(ctx, archive.MetaKey(key), bytes.NewReader(encoded)); err != nil {
		return nil, err
	}
	return b.ReadBack(ctx, key, stats, nil)
}

// Reaches implements reconcile.Archives.
func (b *Bucket) Reaches(j runtime.Job) bool {
	return j.BucketDir == "" || j.BucketDir == b.HostSocketDir
}

// ReadBack reads the stored archive back to its end and compares it with its
// .meta, and that with made, what the job says that it stored.
// archive.ErrCorrupted if they differ.
func (b *Bucket) ReadBack(ctx context.Context, key string, made archive.Stats, progress archive.Progress) (*archive.Meta, error) {
	meta, err := b.Meta(ctx, key)
	if err != nil {
		return nil, err
	}
	if meta.SHA256 != made.SHA256 || meta.Size != made.Size || meta.Entries != made.Entries || meta.Bytes != made.Bytes || meta.Skipped != made.Skipped {
		return nil, fmt.Errorf("%s: %w: it does not describe the archive that the job made", archive.MetaKey(key), archive.ErrCorrupted)
	}
	r, err := b.Open(ctx, key, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if _, err := archive.Verify(ctx, r, meta, progress); err != nil {
		return nil, fmt.Errorf("read %s back: %w", key, err)
	}
	return meta, nil
}
