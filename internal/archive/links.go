package archive

import (
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// linkTable has the files with more than one name, until all names were seen.
type linkTable struct {
	mu    sync.Mutex
	files map[fileID]*linked
}

type fileID struct{ dev, ino uint64 }

type linked struct {
	first int64 // the lowest number of its items
	name  string
	left  uint64 // names not yet in the archive
	state linkState
}

// linkState is what the names of a file have in common. If it differs between two names, the file changed
// between them, or another one has its inode.
type linkState struct {
	mode  uint32
	size  int64
	mtime unix.Timespec
}

func linkStateOf(st *unix.Stat_t) linkState { return linkState{st.Mode, st.Size, st.Mtim} }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} }

// earlier reports whether an earlier item is of the same file, so that this
// item's content is not needed. A later call may still find one.
func (t *linkTable) earlier(it *item) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.files[idOf(&it.stat)]
	if l == nil {
		l = &linked{first: math.MaxInt64, left: uint64(it.stat.Nlink)}
		t.files[idOf(&it.stat)] = l
	}
	if l.first < it.number {
		return true
	}
	l.first = it.number
	return false
}

// link is called in the archive's order. It returns the file's name in the
// archive, or "" for its first name.
func (t *linkTable) link(it *item) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := idOf(&it.stat)
	l := t.files[id]
	if l == nil { // a name was added during the walk
		return ""
	}
	name := l.name
	if name == "" {
		l.name = it.name
	}
	t.count(id, l)
	return name
}

// liveLink is link for a home that may change. It returns "" also if the file is not as it was under its
// first name. After "", keep must be called once the item is in the archive.
func (t *linkTable) liveLink(it *item) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := idOf(&it.stat)
	l := t.files[id]
	if l == nil || l.name == "" || l.state != linkStateOf(&it.stat) {
		return ""
	}
	name := l.name
	t.count(id, l)
	return name
}

// keep makes an item the first name of its file.
func (t *linkTable) keep(it *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := idOf(&it.stat)
	if l := t.files[id]; l != nil {
		l.name, l.state = it.name, linkStateOf(&it.stat)
		t.count(id, l)
	}
}

// count counts a name that is in the archive.
func (t *linkTable) count(id fileID, l *linked) {
	if l.left--; l.left == 0 {
		delete(t.files, id)
	}
}
