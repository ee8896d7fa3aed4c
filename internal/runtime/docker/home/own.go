package home

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
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
