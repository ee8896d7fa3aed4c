// Package imageref says what a reference to a container image is.
package imageref

import (
	"path"
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
	return Digest(s) != ""
}

// Digest returns the digest in s; "" if there is none.
func Digest(s string) string {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return ""
	}
	if digested, ok := ref.(reference.Digested); ok {
		return digested.Digest().String()
	}
	return ""
}

// Repository returns the last part of the name of a repository, such as "workspace".
func Repository(s string) string {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return ""
	}
	return path.Base(ref.Name())
}

// Loaded returns the name on a machine of the image that s names by its digest, if it was loaded
// from a file; "" if s has no digest. codehub pulls no such name; see BuiltHere.
func Loaded(s string) string {
	digest := Digest(s)
	if digest == "" {
		return ""
	}
	return "codehub/" + Repository(s) + ":" + strings.ReplaceAll(digest, ":", "-")
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

// BuiltPrefix begins the names of images that are built from a devcontainer.json. It is followed by
// the id of the user for whom the image was built, and a tag.
const BuiltPrefix = "codehub/devcontainer/"

// BuiltFor returns the user for whom s was built from a devcontainer.json; !ok: s is not such an
// image. No other user may choose it: it may contain private files of this user.
func BuiltFor(s string) (owner string, ok bool) {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(ref.Name(), hub+"/"+BuiltPrefix)
}

// BuiltHere reports whether s is a name that codehub gives the images that it
// builds on a machine. They are in no registry, so an image with such a name in a
// public one is not codehub's.
func BuiltHere(s string) bool {
	ref, err := reference.ParseNormalizedNamed(s)
	return err == nil && strings.HasPrefix(ref.Name(), "docker.io/codehub/")
}
