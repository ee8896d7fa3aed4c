package imageref

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// Allowed is the list of images that workspaces may use. The zero value allows every
// image. docs/images.md#allowed-images describes the patterns.
type Allowed struct {
	patterns []pattern
	always   string // a reference that is allowed in any case; empty: none
}

type pattern struct {
	text   string
	name   *regexp.Regexp // of the registry and the repository
	tag    *regexp.Regexp // nil: every tag and digest
	digest string         // empty: not named by a digest
}

// ParseAllowed reads patterns that are separated by commas. Without patterns every
// image is allowed. always is a reference that needs no pattern, such as that of
// the default image.
func ParseAllowed(list, always string) (Allowed, error) {
	a := Allowed{always: always}
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := parsePattern(text)
		if err != nil {
			return Allowed{}, err
		}
		a.patterns = append(a.patterns, p)
	}
	return a, nil
}

// Allows reports whether a workspace of this owner may use the image; with an empty owner, whether
// the workspaces of all users may. All spellings of a reference give the same answer: "python" is
// "docker.io/library/python:latest". With patterns, only references are allowed. A name that Docker
// could read as the ID of an image on the machine is never allowed. An image that was built from a
// devcontainer.json needs no pattern, and is allowed only for the user for whom it was built.
func (a Allowed) Allows(s, owner string) bool {
	if of, ok := BuiltFor(s); ok {
		return of == owner && len(s) <= MaxLength && !Pinned(s) // Kubernetes would download one with a digest
	}
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil || len(s) > MaxLength {
		return len(a.patterns) == 0 && !hexDigits.MatchString(s) // 64 digits are the ID of an image
	}
	if a.always != "" && Same(s, a.always) {
		return true
	}
	name := normalized(ref.Name())
	tag, digest := "", ""
	if d, ok := ref.(reference.Digested); ok {
		digest = d.Digest().String() // Docker then ignores the tag
	} else if t, ok := reference.TagNameOnly(ref).(reference.Tagged); ok {
		tag = t.Tag()
	}
	if maybeID(name, tag) {
		return false
	}
	if len(a.patterns) == 0 {
		return true
	}
	return slices.ContainsFunc(a.patterns, func(p pattern) bool { return p.matches(name, tag, digest) })
}

// maybeID reports whether Docker takes a spelling of the reference for the beginning of an
// image's ID, such as "cafe" or "sha256:cafe", if no image has that name.
func maybeID(name, tag string) bool {
	short, ok := strings.CutPrefix(name, hub+"/"+official)
	return ok && (short == "sha256" || tag == "latest" && hexDigits.MatchString(short))
}

var hexDigits = regexp.MustCompile(`^[0-9a-f]{1,64}$`)

// NotAllowed is the error for an image that is not allowed.
type NotAllowed struct {
	Image    string
	Patterns []string // of the allowed images; empty: the server has no patterns
}

// Parts of the message of NotAllowed. Pages translate them.
const (
	MsgNotAllowed = "The image %s is not allowed on this server."
	MsgAllowed    = "Allowed images:"
)

func (e *NotAllowed) Error() string {
	if len(e.Patterns) == 0 {
		return fmt.Sprintf(MsgNotAllowed, e.Image)
	}
	return fmt.Sprintf(MsgNotAllowed, e.Image) + " " + MsgAllowed + " " + strings.Join(e.Patterns, ", ") + "."
}

// Check returns a *NotAllowed error unless the image is allowed; see Allows.
func (a Allowed) Check(image, owner string) error {
	if a.Allows(image, owner) {
		return nil
	}
	return &NotAllowed{Image: image, Patterns: a.Patterns()}
}

// CheckStart is Check for the start of a workspace that has the image already. It allows an image
// that was built for an earlier owner of the workspace.
func (a Allowed) CheckStart(image string) error {
	owner, _ := BuiltFor(image)
	return a.Check(image, owner)
}

// Patterns returns the patterns as they were given; none if every image is allowed.
func (a Allowed) Patterns() []string {
	var out []string
	for _, p := range a.patterns {
		out = append(out, p.text)
	}
	return out
}

// String returns the patterns, separated by commas.
func (a Allowed) String() string { return strings.Join(a.Patterns(), ", ") }

func (p pattern) matches(name, tag, digest string) bool {
	switch {
	case !p.name.MatchString(name):
		return false
	case p.digest != "":
		return digest == p.digest
	case p.tag != nil:
		return digest == "" && p.tag.MatchString(tag)
	}
	return true
}

func parsePattern(text string) (pattern, error) {
	p := pattern{text: text}
	rest, digest, digested := strings.Cut(text, "@")
	name, tag, tagged := rest, "", false
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		name, tag, tagged = rest[:i], rest[i+1:], true
	}
	sample := stars.ReplaceAllString(text, "a") // a pattern is a reference with stars in place of characters
	switch {
	case strings.Contains(digest, "*"):
		return p, fmt.Errorf("the pattern %q has a star in its digest", text)
	case strings.Contains(text, "***"):
		return p, fmt.Errorf("the pattern %q has more than two stars in a row", text)
	case !Valid(sample):
		return p, fmt.Errorf("%q is not a pattern of image references", text)
	case digested && tagged:
		return p, fmt.Errorf("the pattern %q has both a tag and a digest", text)
	}
	p.name, p.digest = expression(normalized(name)), digest
	if tagged {
		p.tag = expression(tag)
	}
	return p, nil
}

var stars = regexp.MustCompile(`\*+`)

// expression matches a whole text: * stands for any characters but a slash, ** for any.
func expression(glob string) *regexp.Regexp {
	q := regexp.QuoteMeta(glob)
	q = strings.ReplaceAll(q, `\*\*`, "\x00")
	q = strings.ReplaceAll(q, `\*`, `[^/]*`)
	q = strings.ReplaceAll(q, "\x00", `.*`)
	return regexp.MustCompile("^" + q + "$")
}

const (
	hub      = "docker.io"
	official = "library/"
)

// normalized adds the registry to the name of a repository, or of a pattern of names,
// as Docker does, and writes the registry in lower case. A pattern that begins with **
// as a component covers every registry.
func normalized(name string) string {
	first, rest, more := strings.Cut(name, "/")
	if first == "**" {
		return name
	}
	registry, path := hub, name
	if more && (strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first) {
		registry, path = strings.ToLower(first), rest
	}
	if registry == "index."+hub {
		registry = hub
	}
	if registry == hub && !strings.Contains(path, "/") && !strings.Contains(path, "**") {
		path = official + path
	}
	return registry + "/" + path
}

// Registry returns the registry that a reference names, in lower case: docker.io if it
// names none, and "" for what is not a reference.
func Registry(s string) string {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return ""
	}
	registry, _, _ := strings.Cut(normalized(ref.Name()), "/")
	return registry
}

// WithDigest returns the reference of the image with that digest in the repository
// that s names.
func WithDigest(s, digest string) string {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return ""
	}
	return reference.FamiliarName(ref) + "@" + digest
}

// DigestIn returns the digest that one of digests, such as those that Docker lists of
// an image, gives the image in the repository that s names. It is "" if there is none.
func DigestIn(digests []string, s string) string {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return ""
	}
	for _, d := range digests {
		other, err := reference.ParseNormalizedNamed(d)
		if err != nil || other.Name() != ref.Name() {
			continue
		}
		if digested, ok := other.(reference.Digested); ok {
			return digested.Digest().String()
		}
	}
	return ""
}
