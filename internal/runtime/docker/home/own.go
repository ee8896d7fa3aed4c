package home

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/workspace"
)

// ErrNoUID is the error for a workspace without a uid of its own.
var ErrNoUID = errors.New("a workspace cannot run as root")

// OwnHome implements runtime.Runtime. A server that is root on Docker's host changes the
// owner itself, which saves a container at the first start of each home; another one has
// the helper do it.
func (h *Homes) OwnHome(ctx context.Context, spec runtime.OwnSpec, progress func(runtime.Progress)) error {
	if spec.UID == 0 {
		return ErrNoUID
	}
	if err := h.checkMapped(ctx, spec.UID); err != nil {
		return err
	}
	if progress == nil {
		progress = func(runtime.Progress) {}
	}
	var from []string
	for _, uid := range spec.From {
		from = append(from, strconv.FormatUint(uint64(uid), 10))
	}
	printed, err := h.onHome(ctx, spec.Workspace, spec.VolumeClaim, homeTask{
		args:   []string{helper.CmdOwnHome, strconv.FormatUint(uint64(spec.UID), 10), strings.Join(from, ",")},
		step:   runtime.StepOwning,
		caps:   []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"},
		writes: true, mappedUsers: true,
		here: func(ctx context.Context, home homeRef, progress func(runtime.Progress)) (bool, error) {
			return h.ownHere(ctx, spec, home, progress)
		},
	}, progress)
	if entries, bad := strconv.ParseInt(printed, 10, 64); err == nil && bad == nil {
		progress(runtime.Progress{Step: runtime.StepOwning, Entries: entries})
	}
	return err
}

// maxOwnPath limits the memory of this process for one home to about 20 MB. The helper of a
// deeper home has a memory limit of its own.
const maxOwnPath = 64 << 10

// ownHere changes the owner in this process. It returns false if the helper has to do it.
func (h *Homes) ownHere(ctx context.Context, spec runtime.OwnSpec, home homeRef, progress func(runtime.Progress)) (done bool, err error) {
	if h.Remote || !changesOwners() || !h.Features(ctx).KeepsUsers {
		return false, nil
	}
	path := h.Path(spec.Workspace)
	if home.mount.Type == mount.TypeVolume {
		v, err := h.API.VolumeInspect(ctx, home.source, client.VolumeInspectOptions{})
		if err != nil {
			return false, engine.WrapError(ctx, "inspect volume", err)
		}
		if path = v.Volume.Mountpoint; !h.isLocal(path) {
			return false, nil
		}
	}
	if err := runtime.Fenced(ctx); err != nil {
		return false, fmt.Errorf("%w: %w", runtime.ErrUnreachable, err)
	}
	engine.Report(progress, runtime.StepOwning)
	change := archive.OwnerChange{From: spec.From, To: spec.UID, MaxPath: maxOwnPath}
	var entries int64
	show := func(n int64) { progress(runtime.Progress{Step: runtime.StepOwning, Entries: n}) }
	at := pace(show)
	change.Progress = func(n int64) { entries = n; at(n) }
	err = archive.ChangeOwner(ctx, path, change)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EINVAL) || errors.Is(err, archive.ErrTooDeep) {
		return false, nil // EINVAL: this process is in a user namespace without the uid
	}
	if err == nil {
		show(entries)
	}
	return err == nil, err
}

// changesOwners reports whether this process has the capabilities that a change of owners
// needs. Root may lack some: without CAP_SETFCAP a file would lose its own capabilities.
func changesOwners() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	for _, c := range archive.OwnerCapabilities() {
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			return false
		}
	}
	return true
}

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
