package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// defaultPacks is how many packs a backup can store if NewGeneration does not say it: about 16 GiB.
const defaultPacks = 512

// NewGeneration describes a backup of a home, which becomes a generation.
type NewGeneration struct {
	Claim    string // of the job
	Manifest string // see ManifestKey
	Former   string // key of the manifest before; empty: none

	// FullRead and SkipUnchanged are as in archive.BackupOptions.
	FullRead, SkipUnchanged bool
	Paced                   bool // the backup rests when the disk is slow

	// Packs is for how many packs requests are signed; 0: 512. Only for S3, where a job that adds more
	// ends with storagejob.MorePacks.
	Packs int
}

// ManifestKey returns the key of the manifest of a backup that begins at this time. Its packs have names of
// their own, so that a further attempt with another time overwrites nothing.
func (b *Bucket) ManifestKey(id workspace.ID, at time.Time, backup string) string {
	return b.homeBackups(id) + archive.ManifestName(at, backup)
}

// RewrittenKey returns another key for the manifest of the same backup, which no object has.
func RewrittenKey(manifest string) string {
	return path.Dir(manifest) + "/" + archive.RewrittenName(path.Base(manifest), strings.ToLower(rand.Text()[:12]))
}

// homeBackups returns the prefix of the keys of a workspace's backups.
func (b *Bucket) homeBackups(id workspace.ID) string {
	return b.Installation + "/" + string(id) + "/" + homeBackupFolder + "/"
}

// parseManifest parses the key of a manifest of any installation.
func parseManifest(key string) (Key, error) {
	k := ParseKey(key)
	if k.Kind != Manifest {
		return Key{}, fmt.Errorf("invalid key of a backup %.200q", key)
	}
	return k, nil
}

// ownBackup refuses manifests and packs of other installations.
func (b *Bucket) ownBackup(key string) (Key, error) {
	k := ParseKey(key)
	if k.Kind != Manifest && k.Kind != Pack || k.Installation != b.Installation {
		return Key{}, fmt.Errorf("invalid key of a backup of this installation %.200q", key)
	}
	return k, nil
}

func (b *Bucket) ownManifest(key string) error {
	if _, err := parseManifest(key); err != nil {
		return err
	}
	_, err := b.ownBackup(key)
	return err
}

// BackupJob sets Input, ObjectDir and BucketDir of spec, by which a job backs row's home up.
func (b *Bucket) BackupJob(ctx context.Context, row workspace.Workspace, g NewGeneration, spec *runtime.JobSpec) error {
	for _, key := range []string{g.Manifest, g.Former} {
		if key == "" && g.Manifest != "" {
			continue
		}
		if err := b.ownManifest(key); err != nil {
			return err
		}
		if !strings.HasPrefix(key, b.homeBackups(row.ID)) {
			return fmt.Errorf("backup %.200q is of another workspace than %s", key, row.ID)
		}
	}
	if err := b.right(ctx); err != nil {
		return err
	}
	generation := &storagejob.Generation{Name: path.Base(g.Manifest), FullRead: g.FullRead, SkipUnchanged: g.SkipUnchanged, Paced: g.Paced}
	orders := storagejob.Spec{Kind: string(runtime.JobBackup), Claim: g.Claim, MinFree: b.archiveReserve(), UID: row.Home.UID, Generation: generation}
	var err error
	if orders.Recipient, err = b.recipient(ctx, row.ID); err != nil {
		return err
	}
	if g.Former != "" {
		generation.Former = path.Base(g.Former)
		if orders.Keys, err = b.secrets(ctx, g.Former); err != nil {
			return err
		}
	}
	if b.presigner == nil {
		if err := b.makeFolder(ctx, g.Manifest); err != nil {
			return err
		}
		spec.ObjectDir = b.hostFolderOf(g.Manifest)
		return give(spec, orders)
	}
	signed := &storagejob.SignedGeneration{}
	packs := g.Packs
	if packs == 0 {
		packs = defaultPacks
	}
	if g.Former != "" {
		former, _, err := b.Generation(ctx, g.Former)
		if err != nil {
			return fmt.Errorf("read the backup before: %w", err)
		}
		if err := b.signPacks(ctx, signed, g.Former, former, packs); err != nil {
			return err
		}
	} else if packs > storagejob.MaxPacks {
		return tooManyPacks(packs)
	}
	if signed.Put, err = b.presigner.PresignPut(ctx, g.Manifest, urlsValid); err != nil {
		return err
	}
	signed.Packs = make([]string, packs)
	for i := range signed.Packs {
		key := path.Dir(g.Manifest) + "/" + archive.PackName(archive.Generation(generation.Name), i)
		if signed.Packs[i], err = b.presigner.PresignPut(ctx, key, urlsValid); err != nil {
			return err
		}
	}
	generation.Signed = signed
	return b.giveSigned(spec, orders)
}

func tooManyPacks(n int) error {
	return fmt.Errorf("the backup needs requests for %d packs, and a job can have %d: it is too large for a bucket in S3", n, storagejob.MaxPacks)
}

// signPacks signs requests that read a manifest and its packs. others is how many packs the job gets requests
// for besides.
func (b *Bucket) signPacks(ctx context.Context, signed *storagejob.SignedGeneration, key string, m *archive.Manifest, others int) error {
	url, err := b.presigner.PresignGet(ctx, key, urlsValid)
	if err != nil {
		return err
	}
	signed.Get = map[string]string{path.Base(key): url}
	for name := range m.Packs() {
		if others++; others > storagejob.MaxPacks {
			return tooManyPacks(others)
		}
		if signed.Get[name], err = b.presigner.PresignGet(ctx, path.Dir(key)+"/"+name, urlsValid); err != nil {
			return err
		}
	}
	return nil
}

// DrillJob sets how a job restores a backup into an empty folder and compares it.
func (b *Bucket) DrillJob(ctx context.Context, a workspace.Archive, claim string, spec *runtime.JobSpec) error {
	m, meta, err := b.readManifest(ctx, a.Key)
	if err != nil {
		return err
	}
	if a.Digest != "" && a.Digest != meta.SHA256 || a.Size != 0 && a.Size != meta.Size {
		return fmt.Errorf("%s: %w: %d bytes with sha256 %s, want %d with %s", a.Key, archive.ErrCorrupted, meta.Size, meta.SHA256, a.Size, a.Digest)
	}
	return b.readGeneration(ctx, a.Key, m, storagejob.Spec{Kind: string(runtime.JobDrill), Claim: claim, Meta: *meta, MinFree: b.MinFreeShare}, spec)
}

// readGeneration sets how a job reads a generation.
func (b *Bucket) readGeneration(ctx context.Context, key string, m *archive.Manifest, orders storagejob.Spec, spec *runtime.JobSpec) error {
	if err := b.ownManifest(key); err != nil {
		return err
	}
	orders.Generation = &storagejob.Generation{Name: path.Base(key)}
	var err error
	if orders.Keys, err = b.secrets(ctx, key); err != nil {
		return err
	}
	if b.presigner == nil {
		spec.ObjectDir = b.hostFolderOf(key)
		return give(spec, orders)
	}
	orders.Generation.Signed = &storagejob.SignedGeneration{}
	if err := b.signPacks(ctx, orders.Generation.Signed, key, m, 0); err != nil {
		return err
	}
	return b.giveSigned(spec, orders)
}

// Generation reads the manifest with this key, of any installation, and returns how its packs are read.
func (b *Bucket) Generation(ctx context.Context, key string) (*archive.Manifest, archive.GetRange, error) {
	m, _, err := b.readManifest(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	return m, func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
		r, err := b.Store.GetRange(ctx, path.Dir(key)+"/"+name, offset, length)
		return r, b.confirm(ctx, err)
	}, nil
}

// readManifest reads a manifest, and describes it as a .meta does an archive: with the size and digest of the
// manifest, and without the names of the workspace and its owner.
func (b *Bucket) readManifest(ctx context.Context, key string) (*archive.Manifest, *archive.Meta, error) {
	k, err := parseManifest(key)
	if err != nil {
		return nil, nil, err
	}
	r, err := b.Store.Get(ctx, key, 0)
	if err != nil {
		return nil, nil, b.confirm(ctx, err)
	}
	defer r.Close()
	m, err := archive.ReadManifest(r)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", key, b.confirm(ctx, err))
	}
	t := m.Totals()
	at, _ := archive.IsManifest(path.Base(key))
	meta := &archive.Meta{CodehubVersion: b.Version, WorkspaceID: k.Workspace, ArchiveOpID: k.OpID, CreatedAt: at}
	meta.Describe(archive.Stats{Entries: t.Entries, Bytes: t.Bytes, Skipped: t.Skipped, Size: m.Size(), SHA256: m.Digest()})
	return m, meta, nil
}

// generationState checks a manifest, and that its packs exist in their full size.
func (b *Bucket) generationState(ctx context.Context, row workspace.Workspace) error {
	m, meta, err := b.readManifest(ctx, row.ArchiveKey)
	if err != nil {
		return err
	}
	if err := sameFigures(meta, row); err != nil {
		return err
	}
	folder := path.Dir(row.ArchiveKey) + "/"
	sizes := map[string]int64{}
	for o, err := range b.Store.List(ctx, folder+"packs/") {
		if err != nil {
			return err
		}
		sizes[strings.TrimPrefix(o.Key, folder)] = o.Size
	}
	for name, size := range m.Packs() {
		switch got, ok := sizes[name]; {
		case !ok:
			return fmt.Errorf("%s: %w: %s is missing", row.ArchiveKey, archive.ErrCorrupted, name)
		case !encryption.Fits(got, size):
			return fmt.Errorf("%s: %w: %s has %d bytes, want %d", row.ArchiveKey, archive.ErrCorrupted, name, got, size)
		}
	}
	return nil
}

// Files returns the files of the archive or backup with this key and size.
func (b *Bucket) Files(ctx context.Context, key string, size int64) (archive.Files, error) {
	if ParseKey(key).Kind != Manifest {
		x, err := b.Index(ctx, key, size)
		if err != nil {
			return nil, err
		}
		return x, nil
	}
	m, get, err := b.Generation(ctx, key)
	if err != nil {
		return nil, err
	}
	return m.Files(get), nil
}

// HomeBackups lists all manifests and packs of a workspace's backups, sorted by key.
func (b *Bucket) HomeBackups(ctx context.Context, id workspace.ID) ([]Object, error) {
	var list []Object
	for o, err := range b.Store.List(ctx, b.homeBackups(id)) {
		if err != nil {
			return nil, err
		}
		if k := ParseKey(o.Key); k.Kind == Manifest || k.Kind == Pack {
			list = append(list, Object{o, k})
		}
	}
	return list, nil
}

// PutHomeBackup stores a manifest or pack of this installation under a key that no object has, and reads it back.
func (b *Bucket) PutHomeBackup(ctx context.Context, key string, content []byte) error {
	if _, err := b.ownBackup(key); err != nil {
		return err
	}
	if err := b.right(ctx); err != nil {
		return err
	}
	if _, err := b.Store.Put(ctx, key, bytes.NewReader(content)); err != nil {
		return err
	}
	r, err := b.Store.Get(ctx, key, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	stored := sha256.New()
	if _, err := io.Copy(stored, r); err != nil {
		return err
	}
	if want := sha256.Sum256(content); !bytes.Equal(stored.Sum(nil), want[:]) {
		return fmt.Errorf("%s: %w: its content differs from what was stored", key, archive.ErrCorrupted)
	}
	return nil
}

// DeleteHomeBackup removes a manifest or pack of this installation; it need not exist. Packs that another
// manifest names must stay.
func (b *Bucket) DeleteHomeBackup(ctx context.Context, key string) error {
	if _, err := b.ownBackup(key); err != nil {
		return err
	}
	if err := b.Store.Delete(ctx, key); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}
