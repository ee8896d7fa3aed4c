// Package imageref says what a reference to a container image is.
package imageref

import "github.com/distribution/reference"

// MaxLength is the longest reference that is accepted, in bytes.
const MaxLength = 512

// Valid reports whether s names an image as Docker reads names, such as
// "registry.example.com/team/image:tag". A repository's name is in lower case.
func Valid(s string) bool {
	_, err := reference.ParseNormalizedNamed(s)
	return err == nil && len(s) <= MaxLength
}
