package imageref_test

import (
	"strings"
	"testing"

	"codehub/internal/imageref"
)

func TestValid(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"a":                                    true,
		"codehub/workspace:latest":             true,
		"codehub/workspace:Latest-1_2":         true,
		"Registry.example.com:5000/a/b":        true,
		"a@sha256:" + strings.Repeat("0a", 32): true,
		"":                                     false,
		"codehub/Workspace":                    false, // Docker refuses it
		"-rf":                                  false,
		"--privileged":                         false,
		"a b":                                  false,
		"a\n":                                  false,
		"https://example.com/image":            false,
		"../etc":                               false,
		"a:":                                   false,
		"b/" + strings.Repeat("a", 513):        false,
		strings.Repeat("0123456789abcdef", 64/16): false, // an image's ID, not its name
	} {
		if got := imageref.Valid(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
