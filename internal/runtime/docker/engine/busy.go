package engine

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"codehub/internal/runtime"
)

// ErrRecreated is the error for a name that another server takes whenever it is
// freed.
func ErrRecreated(what string) error {
	return &runtime.BusyError{Reason: what + " was created again after every removal"}
}

// ErrConcurrent is the error for a conflicting change by another server.
func ErrConcurrent(format string, args ...any) error {
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
	return AddressTaken(err)
}

// MaxTries limits how often a call starts over after an error that a new attempt
// may avoid.
const MaxTries = 4
