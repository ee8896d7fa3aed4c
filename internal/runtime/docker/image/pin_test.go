package image

import (
	"errors"
	"fmt"
	"testing"

	"codehub/internal/runtime"
)

// Only a registry that no longer has an image makes a start use another one.
func TestImageGone(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"manifest for a@sha256:0a not found: manifest unknown: manifest unknown": true,
		"failed to resolve reference \"a\": a: not found":                        true,
		"Manifest Unknown": true,
		"Get \"https://registry.example.com/v2/\": dial tcp: lookup registry.example.com: no such host": false,
		"received unexpected HTTP status: 502 Bad Gateway":                                              false,
		"toomanyrequests: You have reached your pull rate limit.":                                       false,
		fmt.Sprintf(runtime.MsgLoginRefused, "registry.example.com"):                                    false,
		fmt.Sprintf(runtime.MsgLoginNeeded, "registry.example.com"):                                     false,
	} {
		if got := gone(fmt.Errorf("start: %w", &runtime.PullError{Image: "a", Message: message})); got != want {
			t.Errorf("%q: %v", message, got)
		}
	}
	if gone(&runtime.SlowPullError{Image: "a"}) || gone(errors.New("not found")) {
		t.Error("an error of another kind")
	}
}
