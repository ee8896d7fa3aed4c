package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
)

// inUse returns a BusyError if any of the containers uses the home and is not only
// a holder or of a role in except. what names the home in the error.
func inUse(what string, users []user, except ...string) error {
	for _, u := range users {
		if !u.idle() && !slices.Contains(except, u.role) {
			return &runtime.BusyError{Reason: fmt.Sprintf("%s is in use by container %s", what, u.name), Container: u.name}
		}
	}
	return nil
}

// errRecreated is the error for a name that another server takes whenever it is
// freed.
func errRecreated(what string) error {
	return &runtime.BusyError{Reason: what + " was created again after every removal"}
}

// errConcurrent is the error for a conflicting change by another server.
func errConcurrent(format string, args ...any) error {
	return &runtime.BusyError{Reason: fmt.Sprintf(format, args...)}
}

// transientMessages are parts of Docker's messages for transient errors, which have
// no code of their own. Lower case; Docker 20.10 and later.
var transientMessages = []string{
	// no free address in a network, or no free network
	"no available ipv4 addresses on this network's address pools",
	"no available addresses on this pool",
	"could not find an available, non-overlapping ipv4 address pool",
	"all predefined address pools have been fully subnetted",
	"pool overlaps with other one on this address space",
	"exchange full", // a bridge takes 1,024 containers
	// no free port (CODEHUB_PUBLISH)
	"all ports are allocated",
	"port is already allocated",
	// another process is about to release it
	"device or resource busy",
	"volume is in use",
	"is already in progress",
	"holding the xtables lock",
}

// isTransient reports whether Docker refused for a transient cause.
func isTransient(err error) bool {
	if errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) {
		return false
	}
	message := strings.ToLower(err.Error())
	for _, words := range transientMessages {
		if strings.Contains(message, words) {
			return true
		}
	}
	return addressTaken(err)
}

// removeVolume removes a volume by its name; a missing one is not an error. Docker
// refuses while a container uses it, which the error then names.
func (r *Runtime) removeVolume(ctx context.Context, name string) error {
	_, err := r.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if errdefs.IsConflict(err) {
		users, listErr := r.users(ctx, name)
		if listErr != nil {
			return listErr
		}
		removers := 0
		for _, u := range users {
			if u.role == roleRemover && !u.running {
				if err := r.discard(ctx, u.id); err != nil {
					return err
				}
				removers++
			}
		}
		if removers > 0 && removers == len(users) {
			return &runtime.BusyError{
				Reason:    fmt.Sprintf("volume %s is still held by its remover %s, which Docker is removing", name, users[0].name),
				Container: users[0].name,
			}
		}
		if len(users) > 0 {
			return &runtime.BusyError{
				Reason:    fmt.Sprintf("volume %s is in use by container %s", name, users[0].name),
				Container: users[0].name,
			}
		}
	}
	return wrapError(ctx, "remove volume", err)
}
