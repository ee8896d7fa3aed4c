package archive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

// fingerprint is an order-independent sum over entries.
type fingerprint struct {
	count int64
	sum   [4]uint64
}

func (f *fingerprint) add(sum [4]uint64) {
	f.count++
	for i := range f.sum {
		f.sum[i] += sum[i]
	}
}

func (f *fingerprint) String() string {
	return fmt.Sprintf("1-%d-%016x%016x%016x%016x", f.count, f.sum[0], f.sum[1], f.sum[2], f.sum[3])
}

// pathPrint hashes the path of a folder: its parent's hash and its name.
func pathPrint(parent [32]byte, base string) [32]byte {
	var b [32 + maxName]byte
	n := copy(b[:], parent[:])
	n += copy(b[n:], base)
	return sha256.Sum256(b[:n])
}

// entryPrint hashes an entry for the fingerprint: path, kind, mode, owner,
// size, inode, mtime and ctime. It omits the access time, which reading
// changes, and the device number, which a new mount may change.
func entryPrint(parent [32]byte, base string, st *unix.Stat_t) [4]uint64 {
	var fixed [32 + 9*8 + maxName]byte
	b := append(fixed[:0], parent[:]...)
	for _, v := range [...]uint64{
		uint64(st.Mode), uint64(st.Uid), uint64(st.Gid), uint64(st.Size), st.Ino,
		uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	sum := sha256.Sum256(append(b, base...))
	var out [4]uint64
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(sum[8*i:])
	}
	return out
}

// Measurement is the result of Measure.
type Measurement struct {
	// Entries and Bytes estimate the figures of an archive of the home. Each
	// name of a file with several names counts its share of the bytes.
	Entries, Bytes int64
	// Skipped is the number of sockets, FIFOs and devices.
	Skipped     int64
	Fingerprint string
}

// Fingerprint returns the fingerprint of a home (see Stats). It reads no
// content, follows no links, changes no access times, and needs constant memory
// and descriptors. A change that it notices is ErrChanged.
func Fingerprint(ctx context.Context, dir string) (string, error) {
	m, err := Measure(ctx, dir, nil)
	return m.Fingerprint, err
}

// Measure reads the metadata of every entry of a home. It calls each, if not
// nil, before every entry; an error of each ends it. See Fingerprint.
func Measure(ctx context.Context, dir string, each func(Measurement) error) (Measurement, error) {
	var o opener
	root, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return Measurement{}, fmt.Errorf("open home: %w", err)
	}
	defer unix.Close(root)
	m := &measurer{each: each}
	if err := traverse(ctx, &o, root, m, false); err != nil {
		return Measurement{}, err
	}
	m.Fingerprint = m.print.String()
	return m.Measurement, nil
}

type measurer struct {
	Measurement
	print fingerprint
	each  func(Measurement) error
}

func (m *measurer) next() error {
	if m.each == nil {
		return nil
	}
	return m.each(m.Measurement)
}

func (m *measurer) Folder(t *treewalk.Walk, dir *treewalk.Dir, st *unix.Stat_t) error {
	if err := enterFolder(t, dir); err != nil {
		return err
	}
	m.Entries++
	m.print.add(entryPrint(dir.Tag, "", st))
	return m.next()
}

func (m *measurer) Leave(*treewalk.Walk, *treewalk.Dir, string) error { return nil }

func (m *measurer) Leaf(t *treewalk.Walk, dir *treewalk.Dir, e treewalk.Entry) error {
	if err := m.next(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir.FD, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return failed(t.Name(e.Name), treewalk.Gone(err))
	}
	m.print.add(entryPrint(dir.Tag, e.Name, &st))
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		m.Entries++
		// Holes are not stored, and a file with several names is stored once.
		m.Bytes += min(st.Size, st.Blocks*512) / int64(max(st.Nlink, 1))
	case unix.S_IFLNK:
		m.Entries++
	default:
		m.Skipped++
	}
	return nil
}
