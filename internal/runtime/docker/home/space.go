package home

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

// treeSize is what a folder has.
type treeSize struct {
	entries, bytes int64 // of all folders and files, with holes
	space          int64 // on the disk; each name of a file with several names counts its share
}

const countedPrefix = "counted "

func (s treeSize) String() string {
	return fmt.Sprintf("%s%d %d %d", countedPrefix, s.entries, s.bytes, s.space)
}

func parseCounted(line []byte) (s treeSize, ok bool) {
	if !strings.HasPrefix(string(line), countedPrefix) {
		return s, false
	}
	n, err := fmt.Sscanf(string(line), countedPrefix+"%d %d %d", &s.entries, &s.bytes, &s.space)
	return s, err == nil && n == 3
}

// measureTries is how often measureTree starts if folders are moved meanwhile.
const measureTries = 3

// measureTree measures a folder whose content may change. Files that disappear meanwhile do not
// count. It follows no links, and needs few descriptors and little memory for a tree of any shape.
func measureTree(ctx context.Context, root string) (s treeSize, err error) {
	for range measureTries {
		s = treeSize{}
		if err = s.add(ctx, root); !errors.Is(err, treewalk.ErrChanged) {
			break
		}
	}
	return s, err
}

func (s *treeSize) add(ctx context.Context, root string) error {
	top, err := treewalk.Open(unix.AT_FDCWD, root, unix.O_DIRECTORY)
	if err == nil {
		defer unix.Close(top)
		err = treewalk.Visit(ctx, top, s, treewalk.Options{Changing: true})
	}
	if err != nil {
		return fmt.Errorf("measure %s: %w", root, err)
	}
	return nil
}

func (s *treeSize) Folder(_ *treewalk.Walk, _ *treewalk.Dir, st *unix.Stat_t) error {
	s.entries++
	s.space += st.Blocks * 512
	return nil
}

func (s *treeSize) Leaf(_ *treewalk.Walk, dir *treewalk.Dir, e treewalk.Entry) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir.FD, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	s.entries++
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		s.bytes += st.Size
	}
	s.space += st.Blocks * 512 / int64(max(st.Nlink, 1))
	return err
}

func (s *treeSize) Leave(*treewalk.Walk, *treewalk.Dir, string) error { return nil }
