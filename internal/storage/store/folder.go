package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	flushEvery = 8 << 20
	tempPrefix = ".put-"
	tempExtra  = 40 // a temporary name is at most this much longer
	// marker is a file in every checked folder. A folder without it is the
	// wrong one: most likely its disk is not mounted.
	marker = ".codehub-archives"
)

// Folder is a Store in a folder. An object is a file. While it is written, it
// has a name in the same folder that no key can have. Symbolic links out of the
// folder are not followed.
type Folder struct {
	dir     string
	checked atomic.Bool
}

// NewFolder returns a store without accessing the folder; Check creates it.
func NewFolder(dir string) *Folder { return &Folder{dir: dir} }

// open opens the folder for each call, since the mount may change.
func (s *Folder) open(ctx context.Context, doing string) (*os.Root, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return nil, unavailable(ctx, doing, err)
	}
	if s.checked.Load() {
		if _, err := root.Lstat(marker); err != nil {
			root.Close()
			return nil, unavailable(ctx, doing, fmt.Errorf("%s is not the archive folder (is its disk mounted?): %w", s.dir, err))
		}
	}
	return root, nil
}

// missing returns ErrNotFound for a missing file, and otherwise ErrUnavailable.
func missing(ctx context.Context, doing string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	return unavailable(ctx, doing, err)
}

func (s *Folder) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	doing := "put " + key
	root, err := s.open(ctx, doing)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	dir := path.Dir(key)
	temp := path.Join(dir, tempPrefix+rand.Text()+"-"+path.Base(key))
	owner, err := ownerOf(root)
	if err != nil {
		return 0, unavailable(ctx, doing, err)
	}
	f, err := createIn(root, dir, temp, owner)
	if err != nil {
		return 0, unavailable(ctx, doing, err)
	}
	src := &tracked{r: r}
	n, err := copySynced(ctx, f, src)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = root.Rename(temp, key)
	}
	if err != nil {
		_ = root.Remove(temp) // otherwise AbortIncomplete removes it
		if src.err != nil {
			return 0, fmt.Errorf("%s: %w", doing, src.err)
		}
		return 0, unavailable(ctx, doing, err)
	}
	if err := syncFolder(root, dir); err != nil {
		return 0, unavailable(ctx, doing, err)
	}
	return n, nil
}

// createIn creates a file and its folders. It retries, since a concurrent
// Delete may remove an empty folder.
func createIn(root *os.Root, dir, name string, owner *syscall.Stat_t) (*os.File, error) {
	for try := 0; ; try++ {
		if err := makeFolders(root, dir, owner); err != nil && !(errors.Is(err, fs.ErrNotExist) && try < 10) {
			return nil, err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			if err = give(root, name, owner); err != nil {
				f.Close()
				_ = root.Remove(name)
				return nil, err
			}
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || try >= 10 {
			return nil, err
		}
	}
}

// ownerOf returns the owner of the store if this process is root: a storage job
// runs as root for a server that may not.
func ownerOf(root *os.Root) (*syscall.Stat_t, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	info, err := root.Lstat(".")
	if err != nil {
		return nil, err
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return st, nil
}

func give(root *os.Root, name string, owner *syscall.Stat_t) error {
	if owner == nil || owner.Uid == 0 {
		return nil
	}
	return root.Lchown(name, int(owner.Uid), int(owner.Gid))
}

// MakeFolder creates the folder of an object, which a storage job then has
// mounted. The folder is durable when MakeFolder returns, and has the store's
// owner.
func (s *Folder) MakeFolder(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	doing := "make the folder of " + key
	root, err := s.open(ctx, doing)
	if err != nil {
		return err
	}
	defer root.Close()
	owner, err := ownerOf(root)
	if err == nil {
		err = makeFolders(root, path.Dir(key), owner)
	}
	if err != nil {
		return unavailable(ctx, doing, err)
	}
	return nil
}

// makeFolders creates folders and syncs their parents.
func makeFolders(root *os.Root, dir string, owner *syscall.Stat_t) error {
	if dir == "." {
		return nil
	}
	err := root.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeFolders(root, path.Dir(dir), owner); err != nil {
			return err
		}
		err = root.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = give(root, dir, owner)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// An existing folder may not have been synced yet.
	return syncFolder(root, path.Dir(dir))
}

func syncFolder(root *os.Root, dir string) error {
	f, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// copySynced copies r to f and syncs it. Writing to disk starts early.
func copySynced(ctx context.Context, f *os.File, r io.Reader) (int64, error) {
	buf := make([]byte, 1<<20)
	var written, flushed int64
	for {
		if err := ctx.Err(); err != nil {
			return written, err
		}
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if _, err := f.Write(buf[:n]); err != nil {
				return written, err
			}
			written += int64(n)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return written, f.Sync()
		}
		if err != nil {
			return written, err
		}
		if written-flushed >= flushEvery {
			// Failure to start writing early is ignored, since Sync follows.
			_ = unix.SyncFileRange(int(f.Fd()), flushed, written-flushed, unix.SYNC_FILE_RANGE_WRITE)
			flushed = written
		}
	}
}

func (s *Folder) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	doing := "get " + key
	root, err := s.open(ctx, doing)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(key)
	if err != nil {
		return nil, missing(ctx, doing, err)
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, missing(ctx, doing, errors.Join(err, fs.ErrNotExist))
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		f.Close()
		return nil, unavailable(ctx, doing, err)
	}
	return &folderReader{ctx, f, doing}, nil
}

func (s *Folder) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	r, err := s.Get(ctx, key, offset)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(r, length), r}, nil
}

type folderReader struct {
	ctx   context.Context
	f     *os.File
	doing string
}

func (r *folderReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, fmt.Errorf("%s: %w", r.doing, context.Cause(r.ctx))
	}
	n, err := r.f.Read(p)
	if err != nil && err != io.EOF {
		err = unavailable(r.ctx, r.doing, err)
	}
	return n, err
}

func (r *folderReader) Close() error { return r.f.Close() }

func (s *Folder) Stat(ctx context.Context, key string) (Object, error) {
	if err := checkKey(key); err != nil {
		return Object{}, err
	}
	doing := "stat " + key
	root, err := s.open(ctx, doing)
	if err != nil {
		return Object{}, err
	}
	defer root.Close()
	st, err := root.Lstat(key)
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Object{}, missing(ctx, doing, err)
	}
	return Object{Key: key, Size: st.Size(), Modified: st.ModTime()}, nil
}

// Delete also removes folders that become empty.
func (s *Folder) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	doing := "delete " + key
	root, err := s.open(ctx, doing)
	if err != nil {
		return err
	}
	defer root.Close()
	st, err := root.Lstat(key)
	if err == nil && st.IsDir() {
		return nil // not an object
	}
	if err == nil {
		err = root.Remove(key)
	}
	if err != nil {
		if err := missing(ctx, doing, err); !errors.Is(err, ErrNotFound) {
			return err
		}
		return nil
	}
	dir := path.Dir(key)
	for ; dir != "."; dir = path.Dir(dir) {
		if root.Remove(dir) != nil {
			break // not empty
		}
	}
	if err := syncFolder(root, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unavailable(ctx, doing, err)
	}
	return nil
}

// tracked records an error of the reader itself, which is not the bucket's.
type tracked struct {
	r   io.Reader
	err error
}

func (t *tracked) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}
