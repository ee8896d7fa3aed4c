package home

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"codehub/internal/runtime/docker/helper"
	"codehub/internal/workspace"
)

// Where Docker maps users (userns-remap, rootless), containers have only as many uids as
// the map has, usually 65536. A workspace of another uid could not be started.

// userMap is what containers may run as.
type userMap struct {
	ranges []workspace.UIDRange
	read   time.Time
}

const (
	uidMapFile    = "/proc/self/uid_map"
	userMapMaxAge = 3 * time.Minute
)

// readUserMap parses a uid_map: lines of the first uid inside, the first outside, and
// their number.
func readUserMap(text string) ([]workspace.UIDRange, error) {
	var out []workspace.UIDRange
	for line := range strings.Lines(text) {
		var inside, outside, count int64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil || inside < 0 || count < 1 {
			return nil, fmt.Errorf("the uid map of a container has the line %.100q", strings.TrimSpace(line))
		}
		out = append(out, workspace.UIDRange{First: uint32(inside), Last: uint32(inside + count - 1)})
	}
	if len(out) == 0 {
		return nil, errors.New("the uid map of a container is empty")
	}
	return out, nil
}

func (m userMap) contains(uid uint32) bool {
	for _, r := range m.ranges {
		if r.First <= uid && uid <= r.Last {
			return true
		}
	}
	return false
}

// String names the uids that a workspace may have.
func (m userMap) String() string {
	var parts []string
	for _, r := range m.ranges {
		if r.Last >= workspace.ArchivedUID {
			parts = append(parts, workspace.UIDRange{First: max(r.First, workspace.ArchivedUID), Last: r.Last}.String())
		}
	}
	return strings.Join(parts, ", ")
}

// userMap returns which uids containers can have; mapped is false if they have all.
func (h *Homes) userMap(ctx context.Context, maxAge time.Duration) (_ userMap, mapped bool, err error) {
	if known, ok := h.mapped.Load().(userMap); ok && h.Now().Sub(known.read) < maxAge {
		return known, true, nil
	}
	if e := h.Features(ctx); !e.Known || e.KeepsUsers {
		return userMap{}, false, nil
	}
	var text bytes.Buffer
	err = h.helper.Run(ctx, helper.Run{Args: []string{helper.CmdUserMap, uidMapFile}, MappedUsers: true, Line: func(line []byte) {
		text.Write(line)
		text.WriteByte('\n')
	}})
	if err != nil {
		return userMap{}, false, err
	}
	ranges, err := readUserMap(text.String())
	if err != nil {
		return userMap{}, false, err
	}
	m := userMap{ranges: ranges, read: h.Now()}
	h.mapped.Store(m)
	return m, true, nil
}

// CheckUIDs reports a range of uids that containers cannot have.
func (h *Homes) CheckUIDs(ctx context.Context) {
	m, mapped, err := h.userMap(ctx, userMapMaxAge)
	if err != nil {
		h.Log.Debug("read the uid map of containers failed", "err", err)
		return
	}
	uids := h.cfg.UIDs
	if !mapped || m.contains(uids.First) && m.contains(uids.Last) {
		h.noUIDs.Set(nil)
		return
	}
	h.noUIDs.Set(fmt.Errorf("containers have only the uids %s, because Docker maps users (userns-remap or rootless): set CODEHUB_WORKSPACE_UIDS to a range among them instead of %s", m, uids))
}

// checkMapped returns an error if a container cannot have the uid.
func (h *Homes) checkMapped(ctx context.Context, uid uint32) error {
	m, mapped, err := h.userMap(ctx, userMapMaxAge)
	if err != nil || !mapped || m.contains(uid) {
		return err
	}
	return fmt.Errorf("containers have no uid %d, only %s, because Docker maps users: an administrator has to change CODEHUB_WORKSPACE_UIDS", uid, m)
}

// printUserMap prints which uids this container has.
func printUserMap(out io.Writer, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}
