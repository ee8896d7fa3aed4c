package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

var errNoUID = errors.New("a workspace cannot run as root")

// OwnHome implements runtime.Runtime. A server that is root on Docker's host changes the
// owner itself, which saves a container at the first start of each home; another one has
// the helper do it.
func (r *Runtime) OwnHome(ctx context.Context, spec runtime.OwnSpec) error {
	if spec.UID == 0 {
		return errNoUID
	}
	from := []uint32{workspace.ArchivedUID}
	if spec.Seeded {
		from = append(from, 0)
	}
	var list []string
	for _, uid := range from {
		list = append(list, strconv.FormatUint(uint64(uid), 10))
	}
	_, err := r.onHome(ctx, spec.Workspace, spec.VolumeClaim, homeTask{
		args:   []string{cmdOwnHome, strconv.FormatUint(uint64(spec.UID), 10), strings.Join(list, ",")},
		caps:   []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"},
		writes: true, mappedUsers: true,
		here: func(ctx context.Context, home homeRef) (bool, error) { return r.ownHere(ctx, spec, home, from) },
	}, nil)
	return err
}

// ownHere changes the owner in this process. It returns false if the helper has to do it.
func (r *Runtime) ownHere(ctx context.Context, spec runtime.OwnSpec, home homeRef, from []uint32) (done bool, err error) {
	if os.Geteuid() != 0 || r.remote || !r.engine(ctx).keepsUsers {
		return false, nil
	}
	path := r.homePath(spec.Workspace)
	if home.mount.Type == mount.TypeVolume {
		v, err := r.api.VolumeInspect(ctx, home.source, client.VolumeInspectOptions{})
		if err != nil {
			return false, wrapError(ctx, "inspect volume", err)
		}
		if path = v.Volume.Mountpoint; !r.isLocal(path) {
			return false, nil
		}
	}
	if err := runtime.Fenced(ctx); err != nil {
		return false, fmt.Errorf("%w: %w", runtime.ErrUnreachable, err)
	}
	err = archive.ChangeOwner(ctx, path, from, spec.UID)
	if errors.Is(err, fs.ErrPermission) { // root without capabilities
		return false, nil
	}
	return err == nil, err
}
