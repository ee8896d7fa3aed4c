// Package imageref says what a reference to a container image is.
package imageref

import (
	"strings"

	"github.com/distribution/reference"
)

// MaxLength is the longest reference that is accepted, in bytes.
const MaxLength = 512

// Valid reports whether s names an image as Docker reads names, such as
// "registry.example.com/team/image:tag". A repository's name is in lower case.
func Valid(s string) bool {
	_, err := reference.ParseNormalizedNamed(s)
	return err == nil && len(s) <= MaxLength
}

// Pinned reports whether s contains the digest of its image, so that a registry
// cannot provide another one.
func Pinned(s string) bool {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return false
	}
	_, ok := ref.(reference.Digested)
	return ok
}

// Same reports whether a and b are names of the same image: "codehub/workspace" is
// "docker.io/codehub/workspace:latest".
func Same(a, b string) bool {
	full := func(s string) string {
		ref, err := reference.ParseNormalizedNamed(s)
		if err != nil {
			return s
		}
		return reference.TagNameOnly(ref).String()
	}
	return full(a) == full(b)
}

// BuiltHere reports whether s is a name that codehub gives the images that it
// builds on a machine. They are in no registry, so an image with such a name in a
// public one is not codehub's.
func BuiltHere(s string) bool {
	ref, err := reference.ParseNormalizedNamed(s)
	return err == nil && strings.HasPrefix(ref.Name(), "docker.io/codehub/")
}
