package imageref_test

import (
	"strings"
	"testing"

	"codehub/internal/workspace/imageref"
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

func TestPinnedSameBuiltHere(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for s, want := range map[string]bool{
		"a": false, "a:1": false, "a" + digest: true, "registry.example.com/a:1" + digest: true, "a b" + digest: false, "": false,
	} {
		if got := imageref.Pinned(s); got != want {
			t.Errorf("Pinned(%q) = %v", s, got)
		}
	}
	const image = "codehub/workspace:latest"
	for s, want := range map[string]bool{
		"codehub/workspace": true, "docker.io/codehub/workspace": true, "index.docker.io/codehub/workspace:latest": true,
		"codehub/workspace:1": false, "registry.example.com/codehub/workspace": false, image + digest: false, "": false,
	} {
		if got := imageref.Same(image, s); got != want {
			t.Errorf("Same(%q, %q) = %v", image, s, got)
		}
	}
	for s, want := range map[string]bool{
		"codehub/workspace": true, "docker.io/codehub/any:1": true, "index.docker.io/codehub/any": true,
		"codehub": false, "codehubs/workspace": false, "registry.example.com/codehub/workspace": false, "localhost/codehub/workspace": false, "": false,
	} {
		if got := imageref.BuiltHere(s); got != want {
			t.Errorf("BuiltHere(%q) = %v", s, got)
		}
	}
	for s, want := range map[string][3]string{
		"registry.example.com/team/ide:1" + digest: {digest[1:], "ide", "codehub/ide:sha256-" + strings.Repeat("0a", 32)},
		"python" + digest:                          {digest[1:], "python", "codehub/python:sha256-" + strings.Repeat("0a", 32)},
		"codehub/ide:1":                            {"", "ide", ""},
		"a b":                                      {"", "", ""},
	} {
		if got := [3]string{imageref.Digest(s), imageref.Repository(s), imageref.Loaded(s)}; got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
		if loaded := imageref.Loaded(s); loaded != "" && (!imageref.BuiltHere(loaded) || imageref.Pinned(loaded)) {
			t.Errorf("%q could be pulled", loaded)
		}
	}
}
