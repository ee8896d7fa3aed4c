package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"codehub/internal/archive"
	"codehub/internal/base/breaker"
	"codehub/internal/base/health"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Config configures a Bucket.
type Config struct {
	Store        store.Store
	Installation string // id of the installation
	Version      string // of codehub, for the .meta

	// Folder is the path of a folder store for this process, and HostFolder its
	// path for Docker (see HostPath). Empty for S3.
	Folder, HostFolder string

	// SocketDir is the folder of Relay's socket for this process, and
	// HostSocketDir its path for Docker. Only for S3. Without them jobs reach the
	// bucket over the network, and there is no Relay.
	SocketDir, HostSocketDir string
	// Authorities are those that jobs over the network trust in addition, in PEM.
	Authorities []byte

	Settings

	// Breaker is the circuit breaker for calls to the bucket; for S3 it must
	// also be in the store's transport (see store.OpenOver). nil: none. New
	// sets its probe.
	Breaker *breaker.Breaker

	Log *slog.Logger // nil: none
	// Conditions lists that storage jobs cannot reach the bucket; nil: it is only
	// logged.
	Conditions *health.Monitor
}

// Bucket is one installation's part of a bucket. Its errors are those of
// store.Store; store.ErrNotFound is returned only if the bucket is known to be
// the right one.
type Bucket struct {
	Config
	socket    *health.Condition
	keys      *health.Condition
	presigner store.Presigner // nil: a folder
	folders   folderStore     // nil: S3
	encrypted *encrypted      // Config.Store

	manifests budget

	mu      sync.Mutex
	allowed *endpoint // what Relay forwards; nil: not known yet
}

// New returns a Bucket. It does not access the bucket; Check does.
func New(c Config) (*Bucket, error) {
	if !workspace.ValidID(c.Installation) {
		return nil, fmt.Errorf("bucket: invalid installation id %.50q", c.Installation)
	}
	if c.Store == nil || c.Version == "" {
		return nil, errors.New("bucket: store and version are required")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bucket{Config: c, socket: c.Conditions.New(health.Config{
		Name: "bucket-socket", Failing: "storage jobs cannot reach the bucket; retrying", Resolved: "storage jobs can reach the bucket again", Level: slog.LevelError, Log: c.Log,
	})}
	b.keys = c.Conditions.New(health.Config{
		Name: "archive-keys", Failing: "keys of archives cannot be used; retrying", Resolved: "keys of archives can be used again", Level: slog.LevelError, Log: c.Log,
	})
	b.encrypted = newEncrypted(guard(c.Store, c.Breaker, c.Folder != ""), b)
	b.Store = b.encrypted
	if c.Breaker != nil {
		c.Breaker.SetProbe(b.probe(c.Store))
	}
	if c.Folder != "" {
		folders, ok := c.Store.(folderStore)
		if !ok || c.HostFolder == "" {
			return nil, errors.New("bucket: a folder requires a folder store and its path on Docker's host")
		}
		b.folders = folders
		return b, nil
	}
	presigner, ok := c.Store.(store.Presigner)
	if !ok || (c.SocketDir == "") != (c.HostSocketDir == "") {
		return nil, errors.New("bucket: S3 requires a store that signs URLs, and a folder for the socket has a path on Docker's host")
	}
	b.presigner = presigner
	return b, nil
}

// folderStore is implemented by store.Folder.
type folderStore interface {
	MakeFolder(ctx context.Context, key string) error
}

// Key returns the archive_key of the archive that an operation with this claim
// creates.
func (b *Bucket) Key(id workspace.ID, claim string) string {
	return b.Installation + "/" + archive.HomeKey(string(id), claim)
}

// State checks the archive of a row: its .meta must name the workspace of its key and the
// row's digest and size (if set), and its object must have that size. If it is a backup, also of another
// workspace, its manifest must have that digest and size, and its packs must exist. On an
// error the result is ArchiveUnknown.
func (b *Bucket) State(ctx context.Context, row workspace.Workspace) (lifecycle.Archive, error) {
	err := b.check(ctx, row)
	if err == nil {
		err = b.right(ctx) // a home is removed on this result
	}
	switch {
	case err == nil:
		return lifecycle.ArchivePresent, nil
	case errors.Is(err, store.ErrUnavailable):
		return lifecycle.ArchiveUnknown, err
	case errors.Is(err, store.ErrNotFound):
		b.Log.Warn("archive missing", "workspace", row.ID, "key", row.ArchiveKey, "err", err)
		return lifecycle.ArchiveMissing, nil
	case errors.Is(err, archive.ErrCorrupted):
		b.Log.Warn("archive damaged", "workspace", row.ID, "key", row.ArchiveKey, "err", err)
		return lifecycle.ArchiveCorrupted, nil
	}
	return lifecycle.ArchiveUnknown, err
}

// check returns why the archive of a row cannot be restored.
func (b *Bucket) check(ctx context.Context, row workspace.Workspace) error {
	if ParseKey(row.ArchiveKey).Kind == Manifest {
		return b.generationState(ctx, row)
	}
	meta, err := b.Meta(ctx, row.ArchiveKey)
	if err != nil {
		return err
	}
	if err := describes(meta, row); err != nil {
		return err
	}
	return b.complete(ctx, row.ArchiveKey, meta)
}

// describes compares a .meta with the row whose archive it should describe. That of a fork is another
// workspace's, which the digest in the row identifies.
func describes(meta *archive.Meta, row workspace.Workspace) error {
	if meta.WorkspaceID != string(row.ID) && (row.ArchiveDigest == "" || !workspace.SharedArchive(row.ID, row.ArchiveKey)) {
		return fmt.Errorf("%w: .meta names workspace %.50q", archive.ErrCorrupted, meta.WorkspaceID)
	}
	return sameFigures(meta, row)
}

// sameFigures compares a .meta with the digest and size of a row, if it has them.
func sameFigures(meta *archive.Meta, row workspace.Workspace) error {
	switch {
	case row.ArchiveDigest != "" && meta.SHA256 != row.ArchiveDigest:
		return fmt.Errorf("%w: .meta describes another archive: sha256 %s, want %s", archive.ErrCorrupted, meta.SHA256, row.ArchiveDigest)
	case row.ArchiveSize != 0 && meta.Size != row.ArchiveSize:
		return fmt.Errorf("%w: .meta describes another archive: %d bytes, want %d", archive.ErrCorrupted, meta.Size, row.ArchiveSize)
	}
	return nil
}

// complete checks that the object exists in its full length.
func (b *Bucket) complete(ctx context.Context, key string, meta *archive.Meta) error {
	o, err := b.Stat(ctx, key)
	switch {
	case err != nil || o.Size == meta.Size:
		return err
	case b.Keys == nil && encryption.Fits(o.Size, meta.Size):
		_, err := b.encrypted.identities(ctx, key)
		return err
	}
	return fmt.Errorf("%s: %w: %d bytes, want %d", key, archive.ErrCorrupted, o.Size, meta.Size)
}

// Meta reads the .meta of the archive with this key, of any installation. A
// .meta that does not match its key is archive.ErrCorrupted. Of a backup it describes the manifest, without
// the names of the workspace and its owner.
func (b *Bucket) Meta(ctx context.Context, key string) (*archive.Meta, error) {
	if ParseKey(key).Kind == Manifest {
		_, meta, err := b.readManifest(ctx, key)
		return meta, err
	}
	k, err := parseArchive(key)
	if err != nil {
		return nil, err
	}
	r, err := b.Store.Get(ctx, archive.MetaKey(key), 0)
	if err != nil {
		return nil, b.confirm(ctx, err)
	}
	defer r.Close()
	meta, err := archive.ReadMeta(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", archive.MetaKey(key), b.confirm(ctx, err))
	}
	if meta.WorkspaceID != k.Workspace || meta.ArchiveOpID != k.OpID {
		return nil, fmt.Errorf("%s: %w: it names workspace %.50q and operation %.50q", archive.MetaKey(key), archive.ErrCorrupted, meta.WorkspaceID, meta.ArchiveOpID)
	}
	return meta, nil
}

// Stat returns the object of the archive with this key, with the size of its content.
func (b *Bucket) Stat(ctx context.Context, key string) (store.Object, error) {
	if _, err := parseArchive(key); err != nil {
		return store.Object{}, err
	}
	o, err := b.Store.Stat(ctx, key)
	if err == nil && b.Keys != nil {
		o.Size, err = b.encrypted.source.ContentSize(ctx, key, o.Size)
	}
	return o, b.confirm(ctx, err)
}

// Open reads the archive with this key from an offset. At or past its end the
// reader is empty.
func (b *Bucket) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if _, err := parseArchive(key); err != nil {
		return nil, err
	}
	r, err := b.Store.Get(ctx, key, offset)
	return r, b.confirm(ctx, err)
}

// Index reads the index of the archive with this key and size.
func (b *Bucket) Index(ctx context.Context, key string, size int64) (*archive.Index, error) {
	if _, err := parseArchive(key); err != nil {
		return nil, err
	}
	return archive.OpenIndex(ctx, size, func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		r, err := b.Store.GetRange(ctx, key, offset, length)
		return r, b.confirm(ctx, err)
	})
}

// own refuses keys of other installations: a bug, or a row of another database.
func (b *Bucket) own(key string) (Key, error) {
	k, err := parseArchive(key)
	if err == nil && k.Installation != b.Installation {
		err = fmt.Errorf("archive %.200q does not belong to this installation (%s)", key, b.Installation)
	}
	return k, err
}
