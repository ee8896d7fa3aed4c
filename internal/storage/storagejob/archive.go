package storagejob

import (
	"bytes"
	"context"
	"io"

	"filippo.io/age"

	"codehub/internal/archive"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// archive packs the home into the bucket and then stores the .meta, which
// completes the archive.
func (j *job) archive(ctx context.Context) (archive.Stats, error) {
	put, putMeta, err := j.destination(ctx)
	if err != nil {
		return archive.Stats{}, err
	}
	if j.spec.Signed == nil {
		if err := j.fits(ctx); err != nil {
			return archive.Stats{}, wrap("archive the home", err)
		}
	}
	counting, cancel := context.WithCancel(ctx)
	defer cancel()
	go j.count(counting)
	j.stage("pack")
	if j.spec.Recipient != "" {
		put = encryption.Encrypting(j.encrypt, put)
	}
	stats, err := archive.PackTo(ctx, j.Home, j.packOptions(), put)
	cancel()
	if err != nil {
		return archive.Stats{}, wrap("archive the home", err)
	}
	meta := j.spec.Meta
	meta.Describe(stats)
	b, err := meta.Encode()
	if err != nil {
		return archive.Stats{}, err
	}
	j.stage("meta")
	if err := putMeta(ctx, b); err != nil {
		return archive.Stats{}, wrap("store the .meta", err)
	}
	j.stage("done")
	return stats, nil
}

func (j *job) packOptions() archive.PackOptions {
	options := archive.PackOptions{Progress: j.report.progress, Scratch: j.Scratch}
	if j.spec.UID != 0 {
		options.Owner = archive.OwnerMap{From: j.spec.UID, To: workspace.ArchivedUID}
	}
	return options
}

// encrypt encrypts an archive.
func (j *job) encrypt(content io.Reader) (io.Reader, error) {
	return encryption.EncryptFor(j.spec.Recipient, content)
}

// keys returns the keys that open what the job reads.
func (j *job) keys(context.Context, string) ([]age.Identity, error) {
	ids := make([]age.Identity, len(j.spec.Keys))
	for i, text := range j.spec.Keys {
		key, err := encryption.ParseKey(text)
		if err != nil {
			return nil, err
		}
		ids[i] = key.Identity()
	}
	if len(ids) == 0 {
		return nil, encryption.ErrKey
	}
	return ids, nil
}

// destination returns how the archive and its .meta are stored.
func (j *job) destination(ctx context.Context) (put encryption.Put, putMeta func(context.Context, []byte) error, err error) {
	if s := j.spec.Signed; s != nil {
		t, err := j.transfer()
		if err != nil {
			return nil, nil, err
		}
		j.fit(ctx, s.Upload)
		put = func(ctx context.Context, r io.Reader) (int64, error) { return t.Upload(ctx, s.Upload, r) }
		putMeta = func(ctx context.Context, b []byte) error { return t.Put(ctx, s.Meta, b) }
		return put, putMeta, nil
	}
	folder := store.NewFolder(j.Object)
	// An earlier job of this claim may have stored an archive, which this one
	// replaces.
	if err := folder.Delete(ctx, archive.MetaKey(ObjectName)); err != nil {
		return nil, nil, wrap("store the archive", err)
	}
	put = func(ctx context.Context, r io.Reader) (int64, error) { return j.intoFolder(ctx, folder, ObjectName, r) }
	putMeta = func(ctx context.Context, b []byte) error {
		_, err := folder.Put(ctx, archive.MetaKey(ObjectName), bytes.NewReader(b))
		return err
	}
	return put, putMeta, nil
}

// source opens what is restored.
func (j *job) source(ctx context.Context) (do unpack, closed func() error, err error) {
	if j.spec.Generation != nil {
		m, get, err := j.generation(ctx)
		if err != nil {
			return nil, nil, err
		}
		return j.unpackGeneration(m, get), func() error { return nil }, nil
	}
	r, err := j.open(ctx)
	if err != nil {
		return nil, nil, wrap("open the archive", err)
	}
	return func(ctx context.Context, progress archive.Progress) (archive.Stats, error) {
		return archive.Unpack(ctx, r, j.Home, archive.UnpackOptions{Expect: &j.spec.Meta, Progress: progress})
	}, r.Close, nil
}

// open opens the archive to restore.
func (j *job) open(ctx context.Context) (io.ReadCloser, error) {
	if s := j.spec.Signed; s != nil {
		t, err := j.transfer()
		if err != nil {
			return nil, err
		}
		r, err := t.Get(ctx, s.Get, 0)
		if err != nil {
			return nil, err
		}
		return encryption.Open(ctx, r, ObjectName, j.keys)
	}
	r, err := store.NewFolder(j.Object).Get(ctx, ObjectName, 0)
	if err != nil {
		return nil, err
	}
	return encryption.Open(ctx, r, ObjectName, j.keys)
}
