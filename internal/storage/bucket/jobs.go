package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/workspace"
)

const (
	// maxArchive is the largest archive for S3: 10,000 parts, one of which fits
	// into a job's memory.
	maxArchive = 1 << 40
	// urlsValid is how long the URLs of a job are valid. A job that takes
	// longer fails as in an outage of the bucket. URLs that were signed with a
	// role's credentials expire with these.
	urlsValid = 72 * time.Hour
)

// ArchiveJob sets Input, ObjectDir and BucketDir of spec, by which the job of
// row's claim reaches the bucket. owner is the username of the workspace's
// owner. Call it only to start a job: on S3 it begins an upload.
func (b *Bucket) ArchiveJob(ctx context.Context, row workspace.Workspace, owner string, spec *runtime.JobSpec) error {
	key := b.Key(row.ID, row.OpID)
	if _, err := b.own(key); err != nil {
		return err
	}
	if err := b.right(ctx); err != nil {
		return err
	}
	orders := storagejob.Spec{Kind: string(runtime.JobArchive), Claim: row.OpID, Meta: b.newMeta(row, owner), MinFree: b.archiveReserve(), UID: row.Home.UID}
	var err error
	if orders.Recipient, err = b.recipient(ctx, row.ID); err != nil {
		return err
	}
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
	return b.giveSigned(spec, orders)
}

// RestoreJob sets in spec how a job reads row's archive or backup, whose Meta is meta.
func (b *Bucket) RestoreJob(ctx context.Context, row workspace.Workspace, meta *archive.Meta, spec *runtime.JobSpec) error {
	backup := ParseKey(row.ArchiveKey).Kind == Manifest
	if !backup {
		if _, err := b.own(row.ArchiveKey); err != nil {
			return err
		}
		if err := describes(meta, row); err != nil {
			return err
		}
	}
	orders := storagejob.Spec{Kind: string(runtime.JobRestore), Claim: row.OpID, Meta: *meta, MinFree: b.MinFreeShare}
	if spec.OwnDisk { // others do not need its space, and the home was as full before
		orders.MinFree = 0
	}
	if spec.SharesDisk { // others need the space of the disk
		orders.SharedMinFree = b.MinFreeShare
	}
	if backup {
		m, stored, err := b.readManifest(ctx, row.ArchiveKey)
		if err == nil {
			err = sameFigures(stored, row)
		}
		if err != nil {
			return err
		}
		orders.Meta = *stored
		return b.readGeneration(ctx, row.ArchiveKey, m, orders, spec)
	}
	var err error
	if orders.Keys, err = b.secrets(ctx, row.ArchiveKey); err != nil {
		return err
	}
	if b.presigner == nil {
		spec.ObjectDir = b.hostFolderOf(row.ArchiveKey)
		return give(spec, orders)
	}
	get, err := b.presigner.PresignGet(ctx, row.ArchiveKey, urlsValid)
	if err != nil {
		return err
	}
	orders.Signed = &storagejob.Signed{Get: get}
	return b.giveSigned(spec, orders)
}

func (b *Bucket) giveSigned(spec *runtime.JobSpec, orders storagejob.Spec) error {
	if spec.BucketDir = b.HostSocketDir; spec.BucketDir == "" {
		orders.Authorities = string(b.Authorities)
	}
	return give(spec, orders)
}

func give(spec *runtime.JobSpec, orders storagejob.Spec) error {
	var input bytes.Buffer
	e := json.NewEncoder(&input)
	e.SetEscapeHTML(false) // there are thousands of URLs
	if err := e.Encode(orders); err != nil {
		return fmt.Errorf("encode job instructions: %w", err)
	}
	if input.Len() > storagejob.MaxOrders {
		return fmt.Errorf("the instructions of the job have %d bytes, and at most %d are possible", input.Len(), storagejob.MaxOrders)
	}
	spec.Input = input.Bytes()
	return nil
}

func (b *Bucket) hostFolderOf(key string) string {
	return filepath.Join(b.HostFolder, filepath.FromSlash(path.Dir(key)))
}

// newMeta returns the .meta of the archive of row's claim, without the figures.
func (b *Bucket) newMeta(row workspace.Workspace, owner string) archive.Meta {
	return archive.Meta{
		Format: archive.Format, CodehubVersion: b.Version,
		WorkspaceID: string(row.ID), WorkspaceName: row.Name, Owner: owner,
		ArchiveOpID: row.OpID, CreatedAt: time.Now().UTC().Truncate(time.Second),
	}
}

// PutEmpty stores the archive of a workspace that never had a home and its
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

// Room implements reconcile.Archives.
func (b *Bucket) Room() (int64, error) {
	if b.presigner != nil {
		return math.MaxInt64, nil
	}
	return storagejob.FolderRoom(b.Folder, b.archiveReserve())
}

// archiveReserve is the share of the disk of the archives that stays free. It is half of that of
// the homes, since an archive frees the space of a home.
func (b *Bucket) archiveReserve() float64 { return b.MinFreeShare / 2 }

// Reaches implements reconcile.Archives.
func (b *Bucket) Reaches(j runtime.Job) bool {
	return j.BucketDir == "" || j.BucketDir == b.HostSocketDir
}

// ReadBack reads the stored archive to its end and compares it with its .meta,
// and the .meta with made, the job's result. archive.ErrCorrupted if they
// differ.
func (b *Bucket) ReadBack(ctx context.Context, key string, made archive.Stats, progress archive.Progress) (*archive.Meta, error) {
	if k := ParseKey(key); b.Keys != nil { // it is read with the keys that are in the bucket
		b.forgetKeys(k.Installation, workspace.ID(k.Workspace))
	}
	meta, err := b.Meta(ctx, key)
	if err != nil {
		return nil, err
	}
	if meta.SHA256 != made.SHA256 || meta.Size != made.Size || meta.Entries != made.Entries || meta.Bytes != made.Bytes || meta.Skipped != made.Skipped {
		return nil, fmt.Errorf("%s: %w: it does not describe the archive that the job made", archive.MetaKey(key), archive.ErrCorrupted)
	}
	if err := b.verify(ctx, key, meta, progress); err != nil {
		return nil, fmt.Errorf("read %s back: %w", key, err)
	}
	return meta, nil
}

// Verify reads an archive to its end and compares it with its .meta. archive.ErrCorrupted if they
// differ.
func (b *Bucket) Verify(ctx context.Context, key string) error {
	meta, err := b.Meta(ctx, key)
	if err != nil {
		return err
	}
	return b.verify(ctx, key, meta, nil)
}

func (b *Bucket) verify(ctx context.Context, key string, meta *archive.Meta, progress archive.Progress) error {
	r, err := b.Open(ctx, key, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = archive.Verify(ctx, r, meta, progress)
	return err
}
