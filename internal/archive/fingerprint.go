package archive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// fingerprint sums up what is seen of entries, in any order.
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

// pathPrint stands for the path of a folder: that of its parent and its name.
func pathPrint(parent [32]byte, base string) [32]byte {
	var b [32 + maxName]byte
	n := copy(b[:], parent[:])
	n += copy(b[n:], base)
	return sha256.Sum256(b[:n])
}

// entryPrint is what an entry adds to the fingerprint: path, kind, mode, owner,
// size, inode, mtime and ctime. The access time does not count, as reading
// moves it, nor does the device's number, which another mount may change.
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

// Measurement is what Measure finds in a home.
type Measurement struct {
	// Entries and Bytes are about what an archive of the home would count; of a
	// file with several names each name counts its share of the bytes.
	Entries, Bytes int64
	// Skipped is how many FIFOs, sockets and devices there are.
	Skipped     int64
	Fingerprint string
}

// Fingerprint returns the fingerprint of a home: see Stats. It reads no content,
// follows no links, leaves no trace, and takes memory and descriptors that do
// not grow with the home. A change that is seen meanwhile is ErrChanged.
func Fingerprint(ctx context.Context, dir string) (string, error) {
	m, err := Measure(ctx, dir, nil)
	return m.Fingerprint, err
}

// Measure looks at every entry of a home, and calls each, if it is given,
// before each of them; an error of it ends the look. See Fingerprint.
func Measure(ctx context.Context, dir string, each func(Measurement) error) (Measurement, error) {
	var o opener
	root, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return Measurement{}, fmt.Errorf("open home: %w", err)
	}
	defer unix.Close(root)
	m := &measurer{each: each}
	if err := traverse(ctx, &o, root, m); err != nil {
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

func (m *measurer) folder(dir *folder, _ *traverser, st *unix.Stat_t) (int, error) {
	m.Entries++
	m.print.add(entryPrint(dir.print, "", st))
	return 0, m.next()
}

func (m *measurer) leaf(dir *folder, t *traverser, d dirent) error {
	if err := m.next(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir.fd, d.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return failed(t.name(d.name), gone(err))
	}
	m.print.add(entryPrint(dir.print, d.name, &st))
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		m.Entries++
		// Holes are not stored, and of several names of a file one is.
		m.Bytes += min(st.Size, st.Blocks*512) / int64(max(st.Nlink, 1))
	case unix.S_IFLNK:
		m.Entries++
	default:
		m.Skipped++
	}
	return nil
}
