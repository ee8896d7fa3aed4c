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

// inUse returns a BusyError if any of the containers uses the home and is not just
// a holder. what names the home in the error. Containers of the roles in except
// may use it.
func inUse(what string, users []user, except ...string) error {
	for _, u := range users {
		if !u.idle() && !slices.Contains(except, u.role) {
			return &runtime.BusyError{Reason: fmt.Sprintf("%s is in use by container %s", what, u.name), Container: u.name}
		}
	}
	return nil
}

// comesBack is the error for a name that another server takes each time it is
// freed.
func comesBack(what string) error {
	return &runtime.BusyError{Reason: what + " was created again after every removal"}
}

// meanwhile is the error for a conflicting change by another server.
func meanwhile(format string, args ...any) error {
	return &runtime.BusyError{Reason: fmt.Sprintf(format, args...)}
}

// passing lists Docker's error messages with temporary causes, which have no error
// code: in lower case, from 20.10 on.
var passing = []string{
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

// passes reports whether Docker refused for a temporary cause.
func passes(err error) bool {
	if errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) {
		return false
	}
	message := strings.ToLower(err.Error())
	for _, words := range passing {
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
	return failed(ctx, "remove volume", err)
}
