package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
)

// DropVolume removes a volume by its name; a missing one is not an error. Docker
// refuses while a container uses it, which the error then names.
func (e *Engine) DropVolume(ctx context.Context, name string) error {
	_, err := e.API.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if errdefs.IsConflict(err) {
		users, listErr := e.Users(ctx, name)
		if listErr != nil {
			return listErr
		}
		removers := 0
		for _, u := range users {
			if u.Role == RoleRemover && !u.Running {
				if err := e.Discard(ctx, u.ID); err != nil {
					return err
				}
				removers++
			}
		}
		if removers > 0 && removers == len(users) {
			return &runtime.BusyError{
				Reason:    fmt.Sprintf("volume %s is still held by its remover %s, which Docker is removing", name, users[0].Name),
				Container: users[0].Name,
			}
		}
		if len(users) > 0 {
			return &runtime.BusyError{
				Reason:    fmt.Sprintf("volume %s is in use by container %s", name, users[0].Name),
				Container: users[0].Name,
			}
		}
	}
	return WrapError(ctx, "remove volume", err)
}

// EnsureVolume creates a volume and returns the labels of the one with that name,
// which may have existed before. It inspects the volume, because after a restart
// Docker's response to the creation lacks the labels of an existing volume.
func (e *Engine) EnsureVolume(ctx context.Context, opts client.VolumeCreateOptions) (map[string]string, error) {
	for range 3 {
		if _, err := e.API.VolumeCreate(ctx, opts); err != nil {
			return nil, WrapError(ctx, "create volume", err)
		}
		v, err := e.API.VolumeInspect(ctx, opts.Name, client.VolumeInspectOptions{})
		if err == nil {
			return v.Volume.Labels, nil
		}
		if !errdefs.IsNotFound(err) {
			return nil, WrapError(ctx, "inspect volume", err)
		}
	}
	return nil, fmt.Errorf("volume %s is removed as soon as it is created", opts.Name)
}

// RemoveOwned removes a volume of this installation and role.
func (e *Engine) RemoveOwned(ctx context.Context, name, role string) error {
	v, err := e.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return WrapError(ctx, "inspect volume", err)
	}
	if !e.Owns(v.Volume.Labels, role) {
		return nil
	}
	return e.DropVolume(ctx, name)
}
