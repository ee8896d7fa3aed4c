package storagejob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// errMorePacks means that the signed requests of a backup were used up.
var errMorePacks = errors.New("the backup adds more packs than requests were signed for")

// backup adds a generation of the home, which may be in use.
func (j *job) backup(ctx context.Context) (*Made, error) {
	g := j.spec.Generation
	bucket, err := j.generationBucket()
	if err != nil {
		return nil, err
	}
	opts := archive.BackupOptions{Get: bucket.get, FullRead: g.FullRead, SkipUnchanged: g.SkipUnchanged, Progress: j.report.progress, Pacer: j.pacer, Scratch: j.Scratch, At: j.SnapshotAt, Owner: j.packOptions().Owner}
	former := &archive.Manifest{}
	if g.Former != "" {
		if former, err = bucket.manifest(ctx, g.Former); err != nil {
			return nil, wrap("read the backup before", err)
		}
		opts.Former = former
		t := former.Totals()
		j.report.total(t.Bytes, t.Entries)
	}
	j.stage("pack")
	m, err := archive.Backup(ctx, j.Home, g.Name, bucket.put, opts)
	if errors.Is(err, archive.ErrChanged) {
		// A folder was moved while it was read.
		j.report.next(runtime.StepPacking)
		m, err = archive.Backup(ctx, j.Home, g.Name, bucket.put, opts)
	}
	if err != nil {
		return nil, wrap("back the home up", err)
	}
	made := &Made{Digest: m.Digest(), Size: m.Size(), Unchanged: m == opts.Former}
	changes, err := m.Compare(former)
	if err != nil {
		return nil, err
	}
	t := m.Totals()
	made.BackupFigures = workspace.BackupFigures{
		Entries: t.Entries, Files: t.Files, Bytes: t.Bytes, Skipped: t.Skipped, Stored: t.Stored, Changed: t.Changed, Problems: int64(len(m.Problems())),
		Added: changes.Added, Modified: changes.Changed, Removed: changes.Removed,
	}
	if made.Unchanged {
		made.Stored = 0
	}
	j.stage("done")
	return made, nil
}

// drill restores a generation into the empty home, and compares all of it.
func (j *job) drill(ctx context.Context) (archive.Stats, error) {
	m, get, err := j.generation(ctx)
	if err != nil {
		return archive.Stats{}, err
	}
	before, err := os.Stat(j.Home)
	if err != nil {
		return archive.Stats{}, wrap("open the folder", err)
	}
	stats, err := j.fill(ctx, j.unpackGeneration(m, get), before.Mode())
	if err != nil {
		return archive.Stats{}, err
	}
	j.stage("compare")
	j.report.next(runtime.StepVerifying)
	if err := m.CompareRestored(ctx, get, j.Home, j.report.progress, j.pacer); err != nil {
		return archive.Stats{}, wrap("compare the restored home", err)
	}
	return stats, nil
}

// generation reads the manifest that the spec describes.
func (j *job) generation(ctx context.Context) (*archive.Manifest, archive.GetRange, error) {
	bucket, err := j.generationBucket()
	if err != nil {
		return nil, nil, err
	}
	m, err := bucket.manifest(ctx, j.spec.Generation.Name)
	if err != nil {
		return nil, nil, wrap("read the backup", err)
	}
	if want := j.spec.Meta; m.Digest() != want.SHA256 || m.Size() != want.Size {
		return nil, nil, fmt.Errorf("%s has %d bytes with sha256 %s, want %d with %s: %w", j.spec.Generation.Name, m.Size(), m.Digest(), want.Size, want.SHA256, archive.ErrCorrupted)
	}
	return m, bucket.get, nil
}

// unpackGeneration returns how a generation is unpacked. Its figures are those of its manifest.
func (j *job) unpackGeneration(m *archive.Manifest, get archive.GetRange) unpack {
	return func(ctx context.Context, progress archive.Progress) (archive.Stats, error) {
		meta := &j.spec.Meta
		if t := m.Totals(); t.Entries != meta.Entries || t.Bytes != meta.Bytes {
			return archive.Stats{}, fmt.Errorf("the backup has %d entries with %d bytes, want %d with %d: %w", t.Entries, t.Bytes, meta.Entries, meta.Bytes, archive.ErrCorrupted)
		}
		stats, err := m.Unpack(ctx, get, j.Home, archive.UnpackOptions{Progress: progress, Pacer: j.pacer})
		if err != nil {
			return archive.Stats{}, err
		}
		stats.Size, stats.SHA256 = meta.Size, meta.SHA256
		return stats, nil
	}
}

// generationBucket is where the objects of generations are, by their names in the workspace's folder.
type generationBucket struct {
	source *encryption.Source
	put    archive.PutObject
}

// generationBucket returns the mounted folder, or the signed requests.
func (j *job) generationBucket() (*generationBucket, error) {
	get, put, err := j.generationObjects()
	if err != nil {
		return nil, err
	}
	return &generationBucket{encryption.NewSource(get, j.keys), func(ctx context.Context, name string, content []byte) error {
		stored, err := encryption.EncryptBytes(j.spec.Recipient, content)
		if err != nil {
			return err
		}
		return put(ctx, name, stored)
	}}, nil
}

// generationObjects returns how objects are read and stored as they are in the bucket.
func (j *job) generationObjects() (archive.GetRange, archive.PutObject, error) {
	s := j.spec.Generation.Signed
	if s == nil {
		folder := store.NewFolder(j.Object)
		get := func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
			if length < 0 {
				return folder.Get(ctx, name, offset)
			}
			return folder.GetRange(ctx, name, offset, length)
		}
		return get, func(ctx context.Context, name string, content []byte) error {
			return j.putInFolder(ctx, folder, name, content)
		}, nil
	}
	t, err := j.transfer()
	if err != nil {
		return nil, nil, err
	}
	puts := map[string]string{j.spec.Generation.Name: s.Put}
	for i, url := range s.Packs {
		puts[archive.PackName(archive.Generation(j.spec.Generation.Name), i)] = url
	}
	download := func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
		url, ok := s.Get[name]
		if !ok {
			return nil, fmt.Errorf("no request was signed for %s", name)
		}
		return t.Download(ctx, "get "+name, func(context.Context) (string, error) { return url, nil }, offset, length)
	}
	return download, func(ctx context.Context, name string, content []byte) error {
		url, ok := puts[name]
		if !ok {
			return fmt.Errorf("%w: %d", errMorePacks, len(s.Packs))
		}
		return t.Put(ctx, url, content)
	}, nil
}

// putInFolder stores an object and leaves the reserve of the disk free.
func (j *job) putInFolder(ctx context.Context, folder *store.Folder, name string, content []byte) error {
	left, err := j.archiveRoom()
	if err != nil {
		return err
	}
	if needs := int64(len(content)); needs > left {
		return &noRoom{Room{Needs: needs, Free: left}}
	}
	began := j.pacer.Begin(ctx) // the disk may be that of the homes
	_, err = folder.Put(ctx, name, bytes.NewReader(content))
	j.pacer.End(began, int64(len(content)))
	return err
}

// get reads a range of a pack. A missing pack is damage: the manifest says that there is one.
func (b *generationBucket) get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	r, err := b.source.Range(ctx, name, offset, length)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: %s is missing", archive.ErrCorrupted, name)
	}
	return r, err
}

// manifest reads a manifest.
func (b *generationBucket) manifest(ctx context.Context, name string) (*archive.Manifest, error) {
	r, err := b.source.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m, err := archive.ReadManifest(r)
	return m, wrap(name, err)
}
