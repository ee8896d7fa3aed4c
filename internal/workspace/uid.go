package workspace

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ArchivedUID is the uid, and the gid, that the files of a workspace have in archives. On
// the host they have the workspace's own (UIDRange).
const ArchivedUID = 1000

// UIDRange is a range of uids of the host. Each workspace runs as one of them and as the
// group of the same number. The kernel counts some resources by uid, such as inotify
// instances, so that workspaces with different uids cannot take them from each other.
type UIDRange struct{ First, Last uint32 }

// Of returns the uid of a workspace. Workspaces share one if there are more of them than
// uids in the range.
func (r UIDRange) Of(w Workspace) uint32 {
	return r.First + uint32(w.UIDOffset%r.Len())
}

// Len returns the number of uids.
func (r UIDRange) Len() int64 { return int64(r.Last) - int64(r.First) + 1 }

func (r UIDRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// minUID is the lowest uid of a workspace: those below are a system's own users.
const minUID = 1000

// ParseUIDRange reads a range such as "1500000-1999999".
func ParseUIDRange(text string) (UIDRange, error) {
	first, last, two := strings.Cut(text, "-")
	from, err := strconv.ParseInt(strings.TrimSpace(first), 10, 32)
	to, err2 := strconv.ParseInt(strings.TrimSpace(last), 10, 32)
	if !two || errors.Join(err, err2) != nil {
		return UIDRange{}, fmt.Errorf("%q is not a range of uids", text)
	}
	if from < minUID || to < from {
		return UIDRange{}, fmt.Errorf("%q is not a range of uids from %d", text, minUID)
	}
	return UIDRange{uint32(from), uint32(to)}, nil
}
