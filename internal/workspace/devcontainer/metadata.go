package devcontainer

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Metadata is the content of a devcontainer-feature.json.
type Metadata struct {
	ID            string
	Options       map[string]Option
	Env           []Variable // of the image, in the order of the file
	DependsOn     []Feature
	InstallsAfter []string // see Feature.Name
	OtherIDs      []string // present and former ones, in the same namespace
	Scripts       []Script // their commands have names that begin with the ID
	Extensions    []string
	Settings      map[string]any
	Ignored       []Ignored // their properties begin with features.ID
}

// Option is an option of a Feature. Values are texts: see Feature.
type Option struct {
	Default string
	Enum    []string // the values that it may have; empty: any
}

// Variable is a variable of an image. Its value may name others, such as ${PATH}.
type Variable struct{ Name, Value string }

const maxVariable = 8 << 10 // bytes

var featureID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// ParseFeature reads the devcontainer-feature.json of a Feature. name is that of the
// devcontainer.json with the Feature, and folder the one that the IDE opens. The error is a clause
// without a full stop.
func ParseFeature(content []byte, name string, place Place, folder string) (Metadata, error) {
	if len(content) > MaxBytes {
		return Metadata{}, &Error{Reason: TooLong, Line: 1}
	}
	root, err := readJSON(content)
	if err != nil {
		return Metadata{}, err
	}
	r := &reader{place: place, dir: path.Dir(name)}
	// Only these may use variables of devcontainer.json. Those in containerEnv are variables of the image.
	resolved := *root
	resolved.keys = slices.DeleteFunc(slices.Clone(root.keys), func(key string) bool { return key != "customizations" && !slices.Contains(hooks, Hook(key)) })
	if err := r.variables(&resolved, place, func(string, string) (string, bool) { return folder, true }); err != nil {
		return Metadata{}, err
	}
	var m Metadata
	var refused []string
	other := ""
	known := map[string]func(string, *node){
		"id":             func(p string, n *node) { r.text(p, n, &m.ID) },
		"options":        func(p string, n *node) { m.Options = r.featureOptions(p, n) },
		"containerEnv":   func(p string, n *node) { m.Env = r.imageEnv(p, n) },
		"dependsOn":      func(p string, n *node) { refused = r.features(p, n, &m.DependsOn) },
		"installsAfter":  func(p string, n *node) { r.featureNames(p, n, &m.InstallsAfter) },
		"legacyIds":      func(p string, n *node) { m.OtherIDs = append(m.OtherIDs, r.texts(p, n)...) },
		"currentId":      func(p string, n *node) { r.text(p, n, &other) },
		"customizations": r.customizations,
		"mounts":         r.asks(ReasonMounts),
		"privileged":     r.asks(ReasonRights),
		"capAdd":         r.asks(ReasonRights),
		"securityOpt":    r.asks(ReasonRights),
		"entrypoint":     r.asks(ReasonOverrideCommand),
	}
	for _, key := range []string{"$schema", "init", "version", "name", "description", "documentationURL", "licenseURL", "keywords", "deprecated"} {
		known[key] = none
	}
	for _, h := range hooks {
		known[string(h)] = func(p string, n *node) { r.script(h, p, n) }
	}
	r.read(root, known)
	r.end()
	switch {
	case !featureID.MatchString(m.ID):
		return Metadata{}, errors.New("the Feature has no valid id")
	case len(refused) > 0:
		return Metadata{}, fmt.Errorf("it depends on %.200q, which is neither in a registry nor in the repository", refused[0])
	case other != "":
		m.OtherIDs = append(m.OtherIDs, other)
	}
	m.Scripts, m.Extensions, m.Settings, m.Ignored = r.out.Scripts, r.out.Extensions, r.out.Settings, r.out.Ignored
	for _, s := range m.Scripts {
		for i := range s.Commands {
			s.Commands[i].Name = strings.TrimSuffix(m.ID+"."+s.Commands[i].Name, ".")
		}
	}
	for i := range m.Ignored {
		if m.Ignored[i].Property != "" {
			m.Ignored[i].Property = shortened("features." + m.ID + "." + m.Ignored[i].Property)
		}
	}
	return m, nil
}

func (r *reader) featureOptions(property string, n *node) map[string]Option {
	out := map[string]Option{}
	r.fields(property, n, func(p, name string, n *node) {
		var o Option
		r.fields(p, n, func(p, key string, n *node) {
			switch {
			case key == "default" && n.kind == boolean:
				o.Default = fmt.Sprint(n.yes)
			case key == "default":
				r.text(p, n, &o.Default)
			case key == "enum":
				o.Enum = r.texts(p, n)
			}
		})
		out[name] = o
	})
	return out
}

// imageEnv reads variables of an image, as far as a Dockerfile can set them.
func (r *reader) imageEnv(property string, n *node) (out []Variable) {
	r.scalars(property, n, func(p, name, value string, n *node) {
		switch {
		case !validVariable(name):
			r.ignore(p, n.line, ReasonEnvName)
		case len(value) > maxVariable || strings.ContainsFunc(value, unicode.IsControl):
			r.ignore(p, n.line, ReasonType)
		default:
			out = append(out, Variable{name, value})
		}
	})
	return out
}
