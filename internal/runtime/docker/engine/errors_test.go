package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"codehub/internal/runtime"
)

// Transient errors are recognized by their messages, in Docker 20.10 and later.
func TestIsTransient(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"no available IPv4 addresses on this network's address pools: codehub-1f346c02 (9e6c)":                       true,
		"No available addresses on this pool":                                                                        true,
		"failed to set up container networking: no available addresses on this pool":                                 true,
		"could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network": true,
		"all predefined address pools have been fully subnetted":                                                     true,
		"Pool overlaps with other one on this address space":                                                         true,
		"invalid pool request: Pool overlaps with other one on this address space":                                   true,
		"Address already in use":                                                                            true,
		"Bind for 127.0.0.1:32768 failed: port is already allocated":                                        true,
		"remove ws-1-home: volume is in use - [3f2a]":                                                       true,
		"removal of container 3f2a is already in progress":                                                  true,
		"unlinkat /var/lib/docker/overlay2/1/merged: device or resource busy":                               true,
		"driver failed programming external connectivity on endpoint x: iptables failed: bad rule":          false,
		"OCI runtime create failed: runc create failed: exec: \"never-started\": executable file not found": false,
		"": false,
	} {
		err := WrapError(t.Context(), "start container", words(message))
		if errors.Is(err, runtime.ErrBusy) != want || errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("%q: %v", message, err)
		}
		if want && !strings.HasSuffix(err.Error(), message) {
			t.Errorf("%q has become %q", message, err)
		}
	}
	bad := fmt.Errorf("no image /volume is in use%w", silent{errdefs.ErrInvalidArgument})
	if errors.Is(WrapError(t.Context(), "create container", bad), runtime.ErrBusy) {
		t.Error("a name is mistaken for a reason")
	}
}

// A full disk is recognized by the end of Docker's message.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"Error response from daemon: mkdir /var/lib/docker/overlay2/5e-init: no space left on device": true,
		"no space left on device":             true,
		"write /x: no space left on device\n": true,
		`error while creating mount source path "/x": mkdir /x: no space left on device`:                          true,
		`failed to create task for container: mkdir /run/containerd/x: no space left on device: unknown`:          true,
		`exec: "x: no space left on device": stat x: no space left on device: no such file or directory: unknown`: false,
		"open /x: no such file or directory": false,
		"":                                   false,
	} {
		err := WrapError(t.Context(), "create container", words(message))
		if errors.Is(err, runtime.ErrNoSpace) != want || errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("%q: %v", message, err)
		}
	}
	bad := fmt.Errorf("no image /x: no space left on device%w", silent{errdefs.ErrInvalidArgument})
	if errors.Is(WrapError(t.Context(), "create container", bad), runtime.ErrNoSpace) {
		t.Error("a name is mistaken for a full disk")
	}
}

type words string

func (w words) Error() string { return string(w) }

// silent hides the message of an error but wraps it.
type silent struct{ error }

func (silent) Error() string { return "" }

func (s silent) Unwrap() error { return s.error }
