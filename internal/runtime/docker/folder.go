package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A local-dir home is the folder {data}/homes/{id}/home. What a docker-volume
// home says by labels stands in home.json beside it.
type sidecar struct {
	Installation string      `json:"installation"`
	Claim        string      `json:"claim"`
	State        folderState `json:"state"`
}

type folderState string

const (
	folderFilling  folderState = "filling"
	folderSeeded   folderState = "seeded"
	folderRemoving folderState = "removing"
)

const homesDir = "homes"

func (r *Runtime) folder(id workspace.ID) string {
	return filepath.Join(r.cfg.DataDir, homesDir, string(id))
}
func (r *Runtime) homePath(id workspace.ID) string { return filepath.Join(r.folder(id), "home") }

// hostHomePath is homePath as the engine sees it.
func (r *Runtime) hostHomePath(id workspace.ID) string {
	return filepath.Join(r.cfg.HostDataDir, homesDir, string(id), "home")
}

// folders lists the local-dir homes.
func (r *Runtime) folders() ([]runtime.Volume, error) {
	if r.cfg.DataDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(r.cfg.DataDir, homesDir))
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
		side, there, err := r.readFolder(id)
		if errors.Is(err, errSidecar) {
			// Nothing is known of this one, and the others are not to suffer
			// for it: like a volume that carries no claim, it is nobody's home.
			if _, said := r.damaged.LoadOrStore(id, true); !said {
				r.log.Error("a home's description is damaged; the home is left alone", "workspace", id, "err", err)
			}
			out = append(out, runtime.Volume{Workspace: id, Storage: workspace.StorageLocalDir})
			continue
		}
		if err != nil {
			return nil, err
		}
		if there && side.Installation == r.cfg.Installation {
			out = append(out, runtime.Volume{
				Workspace: id, Storage: workspace.StorageLocalDir,
				Claim: side.Claim, Seeded: side.State == folderSeeded,
			})
		}
	}
	return out, nil
}

var errSidecar = errors.New("home.json cannot be understood")

// readFolder returns what is known of a workspace's folder, and whether the
// home itself is there.
func (r *Runtime) readFolder(id workspace.ID) (sidecar, bool, error) {
	var side sidecar
	raw, err := os.ReadFile(filepath.Join(r.folder(id), "home.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return side, false, fmt.Errorf("read home.json: %w", err)
	}
	if err == nil {
		if err := json.Unmarshal(raw, &side); err != nil {
			return side, false, fmt.Errorf("%w of workspace %s: %w", errSidecar, id, err)
		}
	}
	info, err := os.Lstat(r.homePath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return side, false, nil
	}
	if err != nil {
		return side, false, fmt.Errorf("look at home: %w", err)
	}
	return side, info.IsDir(), nil
}

func (r *Runtime) ownsFolder(side sidecar, claim string) bool {
	return side.Installation == r.cfg.Installation && side.Claim == claim
}

// writeSidecar stores it so that it is there, whole, after a power cut.
func (r *Runtime) writeSidecar(id workspace.ID, side sidecar) error {
	side.Installation = r.cfg.Installation
	raw, err := json.Marshal(side)
	if err != nil {
		return fmt.Errorf("encode home.json: %w", err)
	}
	dir := r.folder(id)
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

func (r *Runtime) createFolder(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	if r.cfg.DataDir == "" {
		return errors.New("no data folder is set for local-dir homes")
	}
	id := spec.Workspace
	side, there, err := r.readFolder(id)
	if err != nil {
		return err
	}
	switch {
	case !r.ownsFolder(side, spec.Claim) && (there || side != sidecar{}):
		return fmt.Errorf("folder %s: %w", r.homePath(id), runtime.ErrVolumeMismatch)
	case there && side.State == folderSeeded:
		return nil
	}
	report(progress, runtime.StepCreating)
	homes := filepath.Join(r.cfg.DataDir, homesDir)
	for _, dir := range []string{homes, r.folder(id)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make folder for the home: %w", err)
		}
	}
	if err := errors.Join(syncDir(r.cfg.DataDir), syncDir(homes)); err != nil {
		return fmt.Errorf("make folder for the home: %w", err)
	}
	if err := r.writeSidecar(id, sidecar{Claim: spec.Claim, State: folderFilling}); err != nil {
		return err
	}
	if err := r.dismount(ctx, id); err != nil {
		return err
	}
	if err := r.removeTree(ctx, id); err != nil {
		return err
	}
	if err := os.Mkdir(r.homePath(id), 0o755); err != nil {
		return fmt.Errorf("make home: %w", err)
	}
	if err := r.seedFolder(ctx, spec, progress); err != nil {
		return err
	}
	if err := r.dismount(ctx, id); err != nil {
		return err
	}
	return r.writeSidecar(id, sidecar{Claim: spec.Claim, State: folderSeeded})
}

// seedFolder fills the folder as a volume is filled: through a volume of the
// engine's that is a bind mount of it.
func (r *Runtime) seedFolder(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	_, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{
		Name:   mountName(spec.Workspace),
		Driver: "local",
		DriverOpts: map[string]string{
			"type": "none", "o": "bind", "device": r.hostHomePath(spec.Workspace),
		},
		Labels: r.labels(roleMount, spec.Workspace, spec.Claim),
	})
	if err != nil {
		return failed(ctx, "create volume", err)
	}
	madeUp := r.labels(roleMadeUp, spec.Workspace, "")
	if err := r.seed(ctx, spec, mountName(spec.Workspace), madeUp, progress); err != nil {
		return err
	}
	v, err := r.api.VolumeInspect(ctx, mountName(spec.Workspace), client.VolumeInspectOptions{})
	if err != nil {
		return failed(ctx, "inspect volume", err)
	}
	if !r.owns(v.Volume.Labels, roleMount) {
		return fmt.Errorf("volume %s was removed while it was seeded", mountName(spec.Workspace))
	}
	return nil
}

// dismount removes what seedFolder made; the folder stays.
func (r *Runtime) dismount(ctx context.Context, id workspace.ID) error {
	if err := r.removeSeed(ctx, id); err != nil {
		return err
	}
	return errors.Join(r.removeOwned(ctx, mountName(id), roleMount), r.removeOwned(ctx, mountName(id), roleMadeUp))
}

// verifyFolder makes sure that a local-dir home is the one that is meant.
func (r *Runtime) verifyFolder(spec runtime.ContainerSpec) error {
	if spec.Storage != workspace.StorageLocalDir {
		return nil
	}
	if r.cfg.DataDir == "" {
		return errors.New("no data folder is set for local-dir homes")
	}
	side, there, err := r.readFolder(spec.Workspace)
	if err != nil {
		return err
	}
	if !there || !r.ownsFolder(side, spec.VolumeClaim) || side.State == folderRemoving {
		return fmt.Errorf("folder %s: %w", r.homePath(spec.Workspace), runtime.ErrVolumeMismatch)
	}
	return nil
}

// removeFolder removes a local-dir home, if there is one. It is listed until
// nothing of it is left.
func (r *Runtime) removeFolder(ctx context.Context, id workspace.ID, claim string) error {
	if r.cfg.DataDir == "" {
		return nil
	}
	if _, err := os.Lstat(r.folder(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	side, there, err := r.readFolder(id)
	if err != nil {
		return err
	}
	if !r.ownsFolder(side, claim) && (there || side != sidecar{}) {
		return fmt.Errorf("folder %s: %w", r.homePath(id), runtime.ErrVolumeMismatch)
	}
	if there {
		// The engine keeps a volume that a container holds; a folder it does not know.
		_, err := r.find(ctx, id)
		if err == nil {
			return fmt.Errorf("folder %s is in use by the workspace's container", r.homePath(id))
		}
		if !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
		if err := r.writeSidecar(id, sidecar{Claim: claim, State: folderRemoving}); err != nil {
			return err
		}
	}
	if err := r.removeOwned(ctx, mountName(id), roleMount); err != nil {
		return err
	}
	if err := r.removeTree(ctx, id); err != nil {
		return err
	}
	if err := os.RemoveAll(r.folder(id)); err != nil {
		return fmt.Errorf("remove folder of the home: %w", err)
	}
	return nil
}

// removeTree removes the home folder and all that is in it, by the helper
// where this process may not: the files belong to the image's user.
func (r *Runtime) removeTree(ctx context.Context, id workspace.ID) error {
	err := os.RemoveAll(r.homePath(id))
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("remove home: %w", err)
	}
	if err := r.removeTreeByHelper(ctx, id); err != nil {
		return fmt.Errorf("remove home: %w", err)
	}
	return nil
}

func (r *Runtime) removeTreeByHelper(ctx context.Context, id workspace.ID) error {
	return r.runHelper(ctx, helperRun{
		args:    []string{cmdRemoveHome, "/folder/home"},
		network: "none",
		caps:    []string{"DAC_OVERRIDE", "FOWNER"},
		mounts: []mount.Mount{{
			Type: mount.TypeBind, Source: filepath.Dir(r.hostHomePath(id)), Target: "/folder",
		}},
	})
}
