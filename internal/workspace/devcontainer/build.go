package devcontainer

import (
	"path"
	"strings"

	"github.com/distribution/reference"
)

// Name returns the reference of a Feature without its version, as other Features name it. The name
// of a local Feature is ./ and its path.
func (f Feature) Name() string {
	if f.Local {
		return "./" + f.Reference
	}
	if ref, err := reference.ParseNamed(f.Reference); err == nil {
		return ref.Name()
	}
	return f.Reference
}

// inside returns a path of the file relative to the repository; !ok: it is outside.
func (r *reader) inside(given string) (string, bool) {
	if !path.IsAbs(given) {
		given = path.Join(r.place.Repository, r.dir, given)
	}
	in, ok := below(path.Clean(given), path.Clean(r.place.Repository))
	return path.Clean(in), ok
}

// build reads how the image is built. file is the property of n with the path of the Dockerfile;
// dockerfile and context are where older files have both.
func (r *reader) build(property, file string, n, dockerfile, context *node) {
	var b Build
	bad := false
	inside := func(p string, n *node, to *string) {
		given := ""
		if n == nil || !r.text(p, n, &given) || given == "" {
			return
		}
		in, ok := r.inside(given)
		if !ok {
			bad = true
			r.ignore(p, n.line, ReasonBuildPath)
		}
		*to = in
	}
	if n != nil {
		r.fields(property, n, func(p, key string, n *node) {
			switch key {
			case file:
				inside(p, n, &b.Dockerfile)
			case "context":
				inside(p, n, &b.Context)
			case "target":
				r.text(p, n, &b.Target)
			case "args":
				b.Args = r.options(p, n)
			case "options":
				r.asks(ReasonBuildOptions)(p, n)
			case "cacheFrom":
				r.asks(ReasonBuildCache)(p, n)
			default:
				r.ignore(p, n.line, ReasonUnknown)
			}
		})
	}
	if dockerfile != nil {
		b.Dockerfile, b.Context = "", ""
		inside("dockerFile", dockerfile, &b.Dockerfile)
		inside("context", context, &b.Context)
		context = nil
	}
	unused := func(p string, n *node) {
		if n != nil && !n.nothing() && !bad {
			r.ignore(p, n.line, ReasonType)
		}
	}
	unused("context", context)
	if b.Dockerfile == "" && n != nil && n.kind == object {
		unused(property, n)
	}
	if !bad && b.Dockerfile != "" {
		if b.Context == "" {
			b.Context = path.Dir(b.Dockerfile)
		}
		r.out.Build = &b
		if r.out.Image != "" {
			r.ignore("image", r.out.Line("image"), ReasonBuildImage)
			r.out.Image = ""
		}
	}
}

// options returns the properties of an object as texts. It lists variables of the container as
// ignored: a build has none.
func (r *reader) options(property string, n *node) map[string]string {
	var out map[string]string
	r.scalars(property, n, func(p, name, value string, n *node) {
		if strings.Contains(value, "${containerEnv:") {
			r.ignore(p+": "+value, n.line, ReasonVariable)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value
	})
	return out
}

// feature returns the Feature that a reference names, or why it cannot be installed.
func (r *reader) feature(given string) (Feature, Reason) {
	switch {
	case strings.HasPrefix(given, "./"), strings.HasPrefix(given, "../"), path.IsAbs(given):
		in, ok := r.inside(given)
		if !ok {
			return Feature{}, ReasonBuildPath
		}
		return Feature{Reference: in, Local: true}, ""
	case strings.HasPrefix(given, "https://"), strings.HasPrefix(given, "http://"):
		return Feature{}, ReasonFeatureArchive
	}
	given = strings.ToLower(given)
	if _, err := reference.ParseNamed(given); err != nil {
		return Feature{}, ReasonFeatureName
	}
	return Feature{Reference: given}, ""
}

// features reads an object of Features with their options. It returns the references of those that
// cannot be installed.
func (r *reader) features(property string, n *node, to *[]Feature) (refused []string) {
	r.fields(property, n, func(p, given string, n *node) {
		f, reason := r.feature(given)
		switch {
		case n.nothing() && n.kind != object && n.kind != text: // false and null install nothing
			return
		case reason == "" && n.kind == text && n.text != "":
			f.Options = map[string]string{"version": n.text}
		case reason == "" && n.kind == object:
			f.Options = r.options(p, n)
		case reason == "" && n.kind != boolean && n.kind != text:
			reason = ReasonType
		}
		if reason != "" {
			r.ignore(p, n.line, reason)
			refused = append(refused, given)
			return
		}
		*to = append(*to, f)
	})
	return refused
}

// featureNames reads a list of names of Features.
func (r *reader) featureNames(property string, n *node, to *[]string) {
	for _, name := range r.texts(property, n) {
		f, reason := r.feature(name)
		if reason != "" {
			r.ignore(property+": "+name, n.line, reason)
			continue
		}
		*to = append(*to, f.Name())
	}
}

// texts returns the texts of a list.
func (r *reader) texts(property string, n *node) (out []string) {
	if n.kind != list {
		r.value(property, n, ReasonType)
	}
	for _, each := range n.items {
		if each.kind != text {
			r.ignore(property, each.line, ReasonType)
			continue
		}
		out = append(out, each.text)
	}
	return out
}
