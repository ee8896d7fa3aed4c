package bucket

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"codehub/internal/archive"
)

// Receive stores an archive that another installation made: first the archive, which from
// must deliver exactly as meta describes it, then the .meta. On archive.ErrCorrupted,
// which means another size or digest, nothing is left. It reads from in constant memory.
func (b *Bucket) Receive(ctx context.Context, key string, meta *archive.Meta, from io.Reader) error {
	if _, err := b.own(key); err != nil {
		return err
	}
	if _, err := meta.Encode(); err != nil {
		return err
	}
	sum := sha256.New()
	n, err := b.Store.Put(ctx, key, io.TeeReader(from, sum))
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != meta.SHA256 || n != meta.Size {
		_ = b.Store.Delete(ctx, key)
		return fmt.Errorf("%w: %d bytes with sha256 %s, but .meta says %d bytes with %s", archive.ErrCorrupted, n, got, meta.Size, meta.SHA256)
	}
	return b.Complete(ctx, key, meta)
}

// Complete stores the .meta of a stored archive, which completes it.
func (b *Bucket) Complete(ctx context.Context, key string, meta *archive.Meta) error {
	encoded, err := meta.Encode()
	if err != nil {
		return err
	}
	_, err = b.Store.Put(ctx, archive.MetaKey(key), bytes.NewReader(encoded))
	return err
}
