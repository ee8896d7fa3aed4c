package home

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/workspace"
)

// A local-dir home is the directory {data}/homes/{id}/home. Its home.json holds
// what the labels of a volume hold. Changes to home.json or to the directory's name
// are made under a lock on {data}/homes/{id} after reading it again; the kernel
// releases the lock if the process dies. A home is renamed before it is removed, so
// that no other call finds it.
type sidecar struct {
	Installation string      `json:"installation"`
	Claim        string      `json:"claim"`
	State        folderState `json:"state"`
	Marker       string      `json:"marker,omitempty"` // archive_key of the completed restore
	Live         bool        `json:"live,omitempty"`   // settled: never wiped again
	Owner        string      `json:"owner,omitempty"`  // user name of the workspace's owner
	Name         string      `json:"name,omitempty"`   // of the workspace

	Limit int64 `json:"limit,omitempty"` // bytes that the home can hold; 0: no limit

	// Filler identifies the call or the job's container that fills the directory.
	// Only its report that it has finished counts.
	Filler string `json:"filler,omitempty"`
}

type folderState string

const (
	folderFilling  folderState = "filling"
	folderSeeded   folderState = "seeded"
	folderRestored folderState = "restored"
	folderRemoving folderState = "removing"
)

const homesDir = "homes"

// Folder is the folder around a local-dir home, and Path the home in it.
func (h *Homes) Folder(id workspace.ID) string {
	return filepath.Join(h.cfg.DataDir, homesDir, string(id))
}
func (h *Homes) Path(id workspace.ID) string { return homequota.Home(h.Folder(id)) }

// HostPath is Path on Docker's host.
func (h *Homes) HostPath(id workspace.ID) string {
	below := strings.TrimPrefix(h.Path(id), filepath.Clean(h.cfg.DataDir))
	return filepath.Join(h.cfg.HostDataDir, below)
}

// folders lists the local-dir homes.
func (h *Homes) folders() ([]runtime.Volume, error) {
	if h.cfg.DataDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(h.cfg.DataDir, homesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list homes: %w", err)
	}
	var out []runtime.Volume
	for _, e := range entries {
		if !workspace.ValidID(e.Name()) {
			continue
		}
		id := workspace.ID(e.Name())
		side, there, err := h.readFolder(id)
		if errors.Is(err, errSidecar) {
			// One damaged file must not affect the other homes. The home is treated
			// like a volume without labels.
			if _, logged := h.damaged.LoadOrStore(id, true); !logged {
				h.Log.Error("home.json is damaged; home ignored", "workspace", id, "err", err)
			}
			out = append(out, runtime.Volume{Workspace: id, Storage: workspace.StorageLocalDir, Held: true})
			continue
		}
		if err != nil {
			return nil, err
		}
		if there && side.Installation == "" {
			out = append(out, runtime.Volume{Workspace: id, Storage: workspace.StorageLocalDir, Foreign: true})
		}
		if there && side.Installation == h.Installation {
			own, shared := homequota.OwnDisk(h.Folder(id))
			out = append(out, runtime.Volume{
				Workspace: id, Storage: workspace.StorageLocalDir,
				Claim: side.Claim, Seeded: side.State == folderSeeded, Marker: side.Marker, Held: true, Removing: side.State == folderRemoving,
				Owner: side.Owner, Name: side.Name, Limit: side.Limit, OwnDisk: own, SharesDisk: shared,
			})
		}
	}
	return out, nil
}

var errSidecar = errors.New("home.json is damaged")

// readFolder reads a workspace's home.json and reports whether the home itself
// exists.
func (h *Homes) readFolder(id workspace.ID) (sidecar, bool, error) {
	var side sidecar
	raw, err := os.ReadFile(filepath.Join(h.Folder(id), "home.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return side, false, fmt.Errorf("read home.json: %w", err)
	}
	if err == nil {
		if err := json.Unmarshal(raw, &side); err != nil {
			return side, false, fmt.Errorf("%w of workspace %s: %w", errSidecar, id, err)
		}
	}
	there, err := homequota.Exists(h.Folder(id))
	if err != nil {
		return side, false, fmt.Errorf("stat home: %w", err)
	}
	if !there {
		if side.State != folderRemoving {
			return side, false, nil
		}
		left, err := h.trash(id) // it is listed until it is removed completely
		return side, len(left) > 0, err
	}
	return side, true, nil
}

func (h *Homes) ownsFolder(side sidecar, claim string) bool {
	return side.Installation == h.Installation && side.Claim == claim
}

// writeSidecar writes home.json atomically and durably.
func (h *Homes) writeSidecar(id workspace.ID, side sidecar) error {
	side.Installation = h.Installation
	raw, err := json.Marshal(side)
	if err != nil {
		return fmt.Errorf("encode home.json: %w", err)
	}
	dir := h.Folder(id)
	f, err := os.CreateTemp(dir, ".home.json-*")
	if err != nil {
		return fmt.Errorf("write home.json: %w", err)
	}
	_, err = f.Write(raw)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, "home.json"))
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write home.json: %w", err), removeIfThere(f.Name()))
	}
	return nil
}

// recordFolderRemoval records in home.json that the removal of the home has begun. On a
// full disk, which the removal may be to free, it overwrites the file in place: that
// needs neither space nor an inode.
func (h *Homes) recordFolderRemoval(id workspace.ID, claim string) error {
	side := sidecar{Installation: h.Installation, Claim: claim, State: folderRemoving}
	err := h.writeSidecar(id, side)
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	raw, encodeErr := json.Marshal(side)
	if encodeErr != nil {
		return fmt.Errorf("encode home.json: %w", encodeErr)
	}
	if overwriteErr := overwrite(filepath.Join(h.Folder(id), "home.json"), raw); overwriteErr != nil {
		return errors.Join(err, fmt.Errorf("overwrite home.json: %w", overwriteErr))
	}
	return nil
}

// overwrite replaces the content of a file that is at least as long, and pads it with
// spaces to the same length. A file of less than a block is written at once.
func overwrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < int64(len(content)) {
		err = fmt.Errorf("it has %d bytes, and %d are needed", info.Size(), len(content))
	}
	if err == nil {
		padding := bytes.Repeat([]byte{' '}, int(info.Size())-len(content))
		_, err = f.WriteAt(append(content, padding...), 0)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (h *Homes) createFolder(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	id := spec.Workspace
	users, err := h.folderUsers(ctx, id)
	if err != nil {
		return err
	}
	filler := engine.RandomHex(8)
	filling := sidecar{Claim: spec.Claim, State: folderFilling, Owner: spec.Owner, Name: spec.Name, Filler: filler}
	live, done := false, false
	err = h.editFolder(ctx, spec, func(side sidecar, there bool) (sidecar, error) {
		if live = there && side.Live; live {
			return side, nil
		}
		if err := engine.InUse("folder "+h.Path(id), users); err != nil {
			return side, err
		}
		for _, u := range users {
			if u.HasRun() && (side.Marker == "" || u.ID != side.Filler) {
				return side, fmt.Errorf("folder %s cannot be seeded: container %s uses it: %w", h.Path(id), u.Name, runtime.ErrConflict)
			}
		}
		if done = there && side.State == folderSeeded; done {
			// A concurrent call that waits to fill it then detects the change.
			side.Filler = filler
			return side, nil
		}
		engine.Report(progress, runtime.StepCreating)
		if err := h.writeSidecar(id, filling); err != nil {
			return side, err
		}
		if err := h.discardHome(id); err != nil {
			return side, err
		}
		err := h.makeHome(spec, &filling)
		return filling, err
	})
	if err != nil || live {
		return err
	}
	if err := h.discardJobs(ctx, users); err != nil || done {
		return err
	}
	if err := h.dismount(ctx, id); err != nil {
		return err
	}
	if err := h.emptyTrash(ctx, id, progress); err != nil {
		return err
	}
	if err := h.seedFolder(ctx, spec, progress); err != nil {
		return err
	}
	if err := h.dismount(ctx, id); err != nil {
		return err
	}
	return h.editFolder(ctx, spec, func(side sidecar, there bool) (sidecar, error) {
		if !there || side.Filler != filler || side.State != folderFilling {
			return side, engine.ErrConcurrent("folder %s was filled by another call", h.Path(id))
		}
		side.State = folderSeeded
		return side, nil
	})
}

// createEmptyFolder creates the directory for a restore.
func (h *Homes) createEmptyFolder(ctx context.Context, spec runtime.VolumeSpec) error {
	return h.editFolder(ctx, spec, func(side sidecar, there bool) (sidecar, error) {
		if there { // its limit may have been too small for the restore
			return h.limited(spec.Workspace, side, spec.Disk)
		}
		side = sidecar{Claim: spec.Claim, State: folderFilling, Owner: spec.Owner, Name: spec.Name}
		if err := h.writeSidecar(spec.Workspace, side); err != nil {
			return side, err
		}
		err := h.makeHome(spec, &side)
		return side, err
	})
}

// editFolder changes home.json under the lock, if it has the claim or does not
// exist yet. Another claim is ErrVolumeMismatch.
func (h *Homes) editFolder(ctx context.Context, spec runtime.VolumeSpec, change func(side sidecar, there bool) (sidecar, error)) error {
	id := spec.Workspace
	if h.cfg.DataDir == "" {
		return errors.New("no data folder is set for local-dir homes")
	}
	if err := h.makeFolder(id); err != nil {
		return err
	}
	unlock, err := h.lockFolder(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return engine.ErrConcurrent("folder %s was removed concurrently", h.Folder(id))
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := runtime.Fenced(ctx); err != nil {
		return fmt.Errorf("change folder %s: %w: %w", h.Path(id), runtime.ErrUnreachable, err)
	}
	side, there, err := h.readFolder(id)
	if err != nil {
		return err
	}
	if side.Installation == h.Installation && side.State == folderRemoving && !there {
		side = sidecar{} // the removal was interrupted before this file was removed
	}
	if side.Installation == h.Installation && side.Claim != spec.Claim && !there {
		side = sidecar{} // the home it described was removed by hand
	}
	known := side != sidecar{}
	if known && side.State == folderRemoving || !h.ownsFolder(side, spec.Claim) && (there || known) {
		return fmt.Errorf("folder %s: %w", h.Path(id), runtime.ErrVolumeMismatch)
	}
	next, err := change(side, there)
	if err != nil {
		return err
	}
	next.Installation = h.Installation
	if next == side {
		return nil
	}
	return h.writeSidecar(id, next)
}

// makeFolder creates the directory around a home.
func (h *Homes) makeFolder(id workspace.ID) error {
	if _, err := os.Lstat(h.Folder(id)); err == nil {
		return nil
	}
	homes := filepath.Join(h.cfg.DataDir, homesDir)
	for _, dir := range []string{homes, h.Folder(id)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make folder for the home: %w", err)
		}
	}
	if err := errors.Join(syncDir(h.cfg.DataDir), syncDir(homes)); err != nil {
		return fmt.Errorf("make folder for the home: %w", err)
	}
	return nil
}

// folderUsers lists the containers that have mounted a local-dir home.
func (h *Homes) folderUsers(ctx context.Context, id workspace.ID) ([]engine.User, error) {
	if h.cfg.DataDir == "" {
		return nil, errors.New("no data folder is set for local-dir homes")
	}
	return h.Users(ctx, h.HostPath(id))
}

// endBackups ends the backups of a local-dir home. One that begins later finds what the caller,
// who holds the folder's lock, has recorded.
func (h *Homes) endBackups(ctx context.Context, id workspace.ID) error {
	users, err := h.folderUsers(ctx, id)
	if err != nil {
		return err
	}
	return h.EndBackups(ctx, users)
}

// seedFolder fills the directory like a volume: through a Docker volume that is a
// bind mount of it.
func (h *Homes) seedFolder(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	_, err := h.EnsureVolume(ctx, client.VolumeCreateOptions{
		Name:   engine.MountName(spec.Workspace),
		Driver: "local",
		DriverOpts: map[string]string{
			"type": "none", "o": "bind", "device": h.HostPath(spec.Workspace),
		},
		Labels: h.Labels(engine.RoleMount, spec.Workspace, spec.Claim),
	})
	if err != nil {
		return err
	}
	// Docker writes a volume's options without syncing them, and does not start if
	// a power cut leaves that file empty.
	if err := h.syncMount(ctx, engine.MountName(spec.Workspace)); err != nil {
		return err
	}
	madeUp := h.Labels(engine.RoleImplicit, spec.Workspace, "")
	if err := h.seed(ctx, spec, engine.MountName(spec.Workspace), madeUp, progress); err != nil {
		return err
	}
	v, err := h.API.VolumeInspect(ctx, engine.MountName(spec.Workspace), client.VolumeInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	if !h.Owns(v.Volume.Labels, engine.RoleMount) {
		return engine.ErrConcurrent("volume %s was removed while it was seeded", engine.MountName(spec.Workspace))
	}
	return nil
}

// syncMount syncs the options of a volume if Docker's data directory is accessible.
func (h *Homes) syncMount(ctx context.Context, name string) error {
	v, err := h.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	if !h.isLocal(v.Volume.Mountpoint) {
		return nil
	}
	if err := syncDir(filepath.Dir(filepath.Dir(v.Volume.Mountpoint))); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// dismount removes the volume that seedFolder created and keeps the directory.
func (h *Homes) dismount(ctx context.Context, id workspace.ID) error {
	if err := h.removeSeed(ctx, id); err != nil {
		return err
	}
	return errors.Join(h.RemoveOwned(ctx, engine.MountName(id), engine.RoleMount), h.RemoveOwned(ctx, engine.MountName(id), engine.RoleImplicit))
}

// verifyFolder checks that a local-dir home has the claim.
func (h *Homes) verifyFolder(id workspace.ID, claim string) error {
	if h.cfg.DataDir == "" {
		return errors.New("no data folder is set for local-dir homes")
	}
	side, there, err := h.readFolder(id)
	if err != nil {
		return err
	}
	if !there || !h.ownsFolder(side, claim) || side.State == folderRemoving {
		return fmt.Errorf("folder %s: %w", h.Path(id), runtime.ErrVolumeMismatch)
	}
	return nil
}

// settleFolder records that a local-dir home is live, if it exists.
func (h *Homes) settleFolder(ctx context.Context, id workspace.ID, claim string) error {
	if h.cfg.DataDir == "" || h.verifyFolder(id, claim) != nil {
		return nil
	}
	spec := runtime.VolumeSpec{Workspace: id, Claim: claim}
	err := h.editFolder(ctx, spec, func(side sidecar, there bool) (sidecar, error) {
		if !there {
			return side, nil
		}
		side.Live, side.State = true, folderSeeded
		if side.Marker != "" {
			side.State = folderRestored
		}
		return side, nil
	})
	if errors.Is(err, runtime.ErrVolumeMismatch) {
		return nil // removed in the meantime
	}
	return err
}

// removeFolder removes a local-dir home, if it exists. It is listed until it is
// removed completely.
func (h *Homes) removeFolder(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	if h.cfg.DataDir == "" {
		return nil
	}
	if _, err := os.Lstat(h.Folder(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	users, err := h.folderUsers(ctx, id)
	if err != nil {
		return err
	}
	err = h.withFolder(ctx, id, claim, func(_ sidecar, there bool) error {
		if !there {
			return nil
		}
		// Docker keeps a volume that a container holds, but does not know about a
		// directory.
		if err := engine.InUse("folder "+h.Path(id), users); err != nil {
			return err
		}
		if err := h.endBackups(ctx, id); err != nil {
			return err
		}
		if err := h.recordFolderRemoval(id, claim); err != nil {
			return err
		}
		return h.discardHome(id)
	})
	if err != nil {
		return err
	}
	users = slices.DeleteFunc(users, func(u engine.User) bool { return !u.Idle() })
	if err := h.discardJobs(ctx, users); err != nil {
		return err
	}
	if err := h.dismount(ctx, id); err != nil {
		return err
	}
	if err := h.removeSnapshots(ctx, id); err != nil {
		return err
	}
	engine.Report(progress, runtime.StepRemoving)
	if err := h.emptyTrash(ctx, id, progress); err != nil {
		return err
	}
	return h.withFolder(ctx, id, claim, func(_ sidecar, there bool) error {
		if there {
			return engine.ErrConcurrent("folder %s was filled concurrently", h.Path(id))
		}
		if err := h.closeFolder(id); err != nil { // its image was removed by hand
			return err
		}
		if err := os.RemoveAll(h.Folder(id)); err != nil {
			return fmt.Errorf("remove folder of the home: %w", err)
		}
		if err := syncDir(filepath.Join(h.cfg.DataDir, homesDir)); err != nil {
			return fmt.Errorf("remove folder of the home: %w", err)
		}
		return nil
	})
}

// withFolder calls call under the lock if the directory exists and has the claim,
// or is empty and has none.
func (h *Homes) withFolder(ctx context.Context, id workspace.ID, claim string, call func(side sidecar, there bool) error) error {
	unlock, err := h.lockFolder(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	// Check the fence again: Docker calls check it, but they were made before the
	// wait for the lock.
	if err := runtime.Fenced(ctx); err != nil {
		return fmt.Errorf("remove folder %s: %w: %w", h.Path(id), runtime.ErrUnreachable, err)
	}
	side, there, err := h.readFolder(id)
	if err != nil {
		return err
	}
	if !h.ownsFolder(side, claim) && (there || side != sidecar{}) {
		return fmt.Errorf("folder %s: %w", h.Path(id), runtime.ErrVolumeMismatch)
	}
	return call(side, there)
}
