package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
)

// Digest returns a SHA-256, in hex, of everything that Pack archives of the folder dir: names,
// kinds, modes, owners, modification times, links, attributes, ACLs and content. Two folders
// with equal digests unpack to the same home. The order in which a file system lists attributes
// and the holes of sparse files do not count.
//
// No process may write to the folder in the meantime; see Pack.
func Digest(ctx context.Context, dir string, progress Progress) (sum string, stats Stats, err error) {
	err = pipe(ctx, dir, func(r io.Reader) error {
		sum, stats, err = digestTar(ctx, r, progress)
		return err
	})
	if err != nil {
		return "", Stats{}, fmt.Errorf("compute digest: %w", err)
	}
	return sum, stats, nil
}

func digestTar(ctx context.Context, r io.Reader, progress Progress) (string, Stats, error) {
	d, err := newDecompressor(ctx, r)
	if err != nil {
		return "", Stats{}, err
	}
	defer d.stop()
	m := meter{report: progress}
	tar := tarReader{src: &source{refill: d.next}}
	sum := sha256.New()
	for {
		e, err := tar.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", Stats{}, err
		}
		m.Entries++
		if e.kind == kindFile {
			m.Files++
		}
		m.tick()
		digestHead(sum, e)
		if e.kind != kindFile {
			continue
		}
		n, err := digestContent(ctx, sum, &tar, e, m.tick)
		m.Bytes += n
		if err != nil {
			return "", Stats{}, err
		}
	}
	m.done()
	return hex.EncodeToString(sum.Sum(nil)), m.Stats, nil
}

// digestHead hashes everything except the content. Strings are quoted, so that
// different entries have different texts.
func digestHead(sum hash.Hash, e *entry) {
	fmt.Fprintf(sum, "%c %q %q %o %d %d %d %d.%09d\n", e.kind, e.name, e.link, e.mode, e.uid, e.gid, e.size, e.mtime.Sec, e.mtime.Nsec)
	attributes := slices.Clone(e.xattrs)
	slices.SortFunc(attributes, func(a, b xattr) int { return strings.Compare(a.name, b.name) })
	for _, a := range attributes {
		fmt.Fprintf(sum, "x %q %q\n", a.name, a.value)
	}
}

const digestBlock = 4096

// digestContent hashes the non-zero blocks with their offsets and returns the
// number of bytes in the tar.
func digestContent(ctx context.Context, sum hash.Hash, tar *tarReader, e *entry, tick func()) (int64, error) {
	extents := e.extents
	if !e.sparse() {
		extents = []extent{{0, e.size}}
	}
	b := blockHash{sum: sum}
	var read int64
	for _, x := range extents {
		for at, end := x.offset, x.offset+x.length; at < end; {
			if err := ctx.Err(); err != nil {
				return read, err
			}
			chunk, err := tar.content(min(end-at, 1<<20))
			if err != nil {
				return read, err
			}
			b.write(at, chunk)
			at += int64(len(chunk))
			read += int64(len(chunk))
			tick()
		}
	}
	b.flush()
	return read, nil
}

// blockHash collects data with increasing offsets into aligned blocks.
type blockHash struct {
	sum   hash.Hash
	at    int64 // offset of the block
	block [digestBlock]byte
	dirty bool
}

func (b *blockHash) write(offset int64, data []byte) {
	for len(data) > 0 {
		start := offset &^ (digestBlock - 1)
		if start != b.at {
			b.flush()
			b.at = start
		}
		n := copy(b.block[offset-start:], data)
		b.dirty = true
		offset, data = offset+int64(n), data[n:]
	}
}

var zeroBlock [digestBlock]byte

func (b *blockHash) flush() {
	if b.dirty && !bytes.Equal(b.block[:], zeroBlock[:]) {
		fmt.Fprintf(b.sum, "@%d\n", b.at)
		b.sum.Write(b.block[:])
	}
	b.block, b.dirty = zeroBlock, false
}
