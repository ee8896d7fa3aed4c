package treewipe

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// placesOpen is how many of the nested folders of removeInPlace are open at a time. Others
// are reopened by "..".
const placesOpen = 8

// place is a folder on the path of removeInPlace.
type place struct {
	dir    *os.File // nil: closed temporarily
	device uint64
	inode  uint64
	names  []string // listed and still to remove
	empty  bool     // the present listing has had no names
}

// removeInPlace removes an entry of a folder with its content, and moves nothing: on a full disk
// there is no space for the names of moved folders. It needs 64 bytes of memory or so for each
// level of nesting. If a concurrent removal moves a folder of it, it may leave a part.
func (w *wiper) removeInPlace(ctx context.Context, at *os.File, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return err
	}
	var path []place
	defer func() {
		for _, p := range path {
			p.close()
		}
	}()
	enter := func(at *os.File, device uint64, name string) error {
		dir, st, err := w.open(at, device, name)
		if err != nil {
			return unlessGone(err)
		}
		path = append(path, place{dir: dir, device: st.Dev, inode: st.Ino, empty: true})
		if mounted(dir) { // nothing else would notice a mount of the same file system
			return errMounted
		}
		if far := len(path) - 1 - placesOpen; far >= 0 {
			path[far].close()
		}
		return nil
	}
	if err := enter(at, st.Dev, name); err != nil {
		return err
	}
	for len(path) > 0 {
		here := &path[len(path)-1]
		sub, err := w.removeFlat(ctx, here)
		if err != nil {
			return err
		}
		if sub != "" {
			if err := enter(here.dir, here.device, sub); err != nil {
				return err
			}
			continue
		}
		if len(path) > 1 {
			if there, err := path[len(path)-2].reopen(here.dir); err != nil || !there {
				return err
			}
		}
		here.close()
		path = path[:len(path)-1]
	}
	err := unix.Unlinkat(int(at.Fd()), name, unix.AT_REMOVEDIR)
	if err == nil {
		w.removed()
	}
	if errors.Is(err, unix.ENOTEMPTY) { // a concurrent removal has moved something up
		return nil
	}
	return unlessGone(err)
}

// removeFlat removes the content of a folder until it comes to a folder that is not empty, and
// returns its name.
func (w *wiper) removeFlat(ctx context.Context, p *place) (folder string, err error) {
	for {
		for len(p.names) > 0 {
			name := p.names[0]
			p.names = p.names[1:]
			folder, err := w.unlink(p.dir, name)
			if folder {
				if err = unix.Unlinkat(int(p.dir.Fd()), name, unix.AT_REMOVEDIR); err == nil {
					w.removed()
				}
				if errors.Is(err, unix.ENOTEMPTY) {
					return name, nil
				}
			}
			if err := unlessGone(err); err != nil {
				return "", err
			}
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		p.names, err = p.dir.Readdirnames(1024)
		switch {
		case err == nil:
			p.empty = false
		case !errors.Is(err, io.EOF) && !errors.Is(err, unix.ENOENT):
			return "", err
		case p.empty:
			return "", nil
		default:
			if _, err := p.dir.Seek(0, io.SeekStart); err != nil {
				return "", err
			}
			p.empty = true
		}
	}
}

func (p *place) close() {
	if p.dir != nil {
		p.dir.Close()
	}
	p.dir, p.names, p.empty = nil, nil, false
}

// reopen opens a closed folder by one of its folders. It reports false if that was moved.
func (p *place) reopen(below *os.File) (bool, error) {
	if p.dir != nil {
		return true, nil
	}
	dir, err := open(int(below.Fd()), "..")
	if err != nil {
		return false, unlessGone(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Dev != p.device || st.Ino != p.inode {
		dir.Close()
		return false, err
	}
	p.dir, p.empty = dir, true
	return true, nil
}
