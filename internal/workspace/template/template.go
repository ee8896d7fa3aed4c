// Package template reads the templates of workspaces: YAML with the settings of new workspaces,
// and parameters whose values their owners choose. docs/templates.md describes the format.
package template

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
)

// Limits of a template.
const (
	MaxBytes       = 64 << 10
	MaxName        = 40   // bytes
	MaxTitle       = 80   // characters
	MaxDescription = 1000 // characters
	MaxParameters  = 20
	MaxOptions     = 50
	MaxGroups      = 50
	MaxValue       = 1024 // bytes of a parameter's value
)

// Types of parameters.
const (
	String  = "string"
	Choice  = "choice"
	Boolean = "boolean"
)

// Icons are the names of the pictures that a template may have.
var Icons = []string{"box", "cpp", "data", "go", "home", "java", "node", "python", "server", "sparkle", "terminal"}

// Languages are those of Text, the first of which stands in for the others.
var Languages = []string{"en", "ko"}

// Text is a text by language.
type Text map[string]string

// In returns the text in that language, or in the first one that has it.
func (t Text) In(language string) string {
	if s := t[language]; s != "" {
		return s
	}
	for _, l := range Languages {
		if s := t[l]; s != "" {
			return s
		}
	}
	return ""
}

// Template describes workspaces.
type Template struct {
	Name               string
	Title, Description Text
	Icon               string            // one of Icons; empty: none
	Image              string            // empty: the default image
	Size               string            // empty: the default size
	Env                map[string]string // values may have ${param.NAME}
	Parameters         []Parameter
	Stop, Archive      *int // idle timeouts in seconds; 0: never, nil: the server's
	// BackupInterval is between two backups of the home, in seconds; 0: none, nil: the server's.
	// BackupKeep is the rule of those that are kept; empty: the server's.
	BackupInterval *int
	BackupKeep     string
	// Project is what its workspaces work on. The addresses and branches of repositories may have
	// ${param.NAME}.
	Project workspace.Project
	Groups  []string // names of the groups that may use it; none: everyone
	Hidden  bool     // not offered

	lines map[string]int
}

// Parameter is a value that the owner of a workspace chooses.
type Parameter struct {
	Name               string
	Title, Description Text
	Type               string
	Default            string
	Required           bool     // it has no default
	Pattern            string   // of a String, which matches it as a whole; empty: any text
	Options            []string // of a Choice
}

// TitleIn returns the title in that language, or the name.
func (t Template) TitleIn(language string) string { return cmp.Or(t.Title.In(language), t.Name) }

// TitleIn returns the title in that language, or the name.
func (p Parameter) TitleIn(language string) string { return cmp.Or(p.Title.In(language), p.Name) }

// Line returns the line of a field, such as "size"; 0 if it was not given.
func (t Template) Line(field string) int { return t.lines[field] }

// Problem is a mistake in a template.
type Problem struct {
	Line  int    // from 1
	Field string // such as parameters.version.pattern; empty: the file as a whole
	Text  string // such as "is required"
}

func (p Problem) Error() string {
	if p.Field == "" {
		return fmt.Sprintf("line %d: %s", p.Line, p.Text)
	}
	return fmt.Sprintf("line %d: %s %s", p.Line, p.Field, p.Text)
}

// Problems are all that was found, by line.
type Problems []Problem

func (p Problems) Error() string {
	texts := make([]string, len(p))
	for i, one := range p {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "; ")
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// ValidName reports whether a template may have this name.
func ValidName(name string) bool { return validName.MatchString(name) }

// Version identifies what a template gives to its workspaces. Titles, icons and groups do not
// count.
func (t Template) Version() string {
	type parameter struct {
		Name, Type, Default, Pattern string
		Required                     bool
		Options                      []string
	}
	parameters := make([]parameter, len(t.Parameters))
	for i, p := range t.Parameters {
		parameters[i] = parameter{p.Name, p.Type, p.Default, p.Pattern, p.Required, p.Options}
	}
	given := []any{t.Image, t.Size, t.Env, parameters, t.Stop, t.Archive}
	if !t.Project.Empty() {
		given = append(given, t.Project)
	}
	if t.BackupInterval != nil || t.BackupKeep != "" {
		given = append(given, map[string]any{"interval": t.BackupInterval, "keep": t.BackupKeep})
	}
	text, err := json.Marshal(given)
	if err != nil {
		panic(err) // texts and numbers alone
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// Reasons of a ValueError. Pages translate them.
const (
	Unknown   = "unknown"
	Missing   = "missing"
	NoOption  = "no_option"
	NoBoolean = "no_boolean"
	Mismatch  = "mismatch"
	TooLong   = "too_long"
	BadText   = "bad_text"
	// Of a parameter that the address or the branch of a repository has.
	NoRepository = "no_repository"
	NoBranch     = "no_branch"
	SameFolder   = "same_folder"
)

// ValueError is a value of a parameter that is refused.
type ValueError struct {
	Name, Reason string
	Parameter    Parameter
}

// Error returns a clause without a full stop.
func (e *ValueError) Error() string {
	switch e.Reason {
	case Unknown:
		return fmt.Sprintf("the template has no parameter %s", e.Name)
	case Missing:
		return fmt.Sprintf("the parameter %s needs a value", e.Name)
	case NoOption:
		return fmt.Sprintf("the parameter %s is one of: %s", e.Name, strings.Join(e.Parameter.Options, ", "))
	case NoBoolean:
		return fmt.Sprintf("the parameter %s is true or false", e.Name)
	case Mismatch:
		return fmt.Sprintf("the value of the parameter %s does not match %s", e.Name, e.Parameter.Pattern)
	case TooLong:
		return fmt.Sprintf("the value of the parameter %s is longer than %d bytes", e.Name, MaxValue)
	}
	switch e.Reason {
	case NoRepository:
		return fmt.Sprintf("the value of the parameter %s makes no address of a repository", e.Name)
	case NoBranch:
		return fmt.Sprintf("the value of the parameter %s makes no name of a branch", e.Name)
	case SameFolder:
		return fmt.Sprintf("the value of the parameter %s makes two repositories with the same folder", e.Name)
	}
	return fmt.Sprintf("the value of the parameter %s has a control character", e.Name)
}

// Check returns the reason for which a value is refused, or "".
func (p Parameter) Check(value string) string {
	switch {
	case p.Type == Choice && !slices.Contains(p.Options, value):
		return NoOption
	case p.Type == Boolean && value != "true" && value != "false":
		return NoBoolean
	case p.Type != String:
		return ""
	case len(value) > MaxValue:
		return TooLong
	case !utf8.ValidString(value), strings.ContainsFunc(value, workspace.Unprintable):
		return BadText
	case p.Pattern != "":
		if re, err := compile(p.Pattern); err != nil || !re.MatchString(value) {
			return Mismatch
		}
	}
	return ""
}

// compile returns the expression of a pattern, which matches a value as a whole.
func compile(pattern string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(pattern); err != nil { // such as a parenthesis that closes ours
		return nil, err
	}
	return regexp.Compile(`^(?:` + pattern + `)$`)
}

// Values completes and checks the values of the parameters. The error is a *ValueError.
func (t Template) Values(given map[string]string) (map[string]string, error) {
	values := make(map[string]string, len(t.Parameters))
	for _, p := range t.Parameters {
		value, ok := given[p.Name]
		switch {
		case !ok && p.Required, ok && value == "" && p.Required:
			return nil, &ValueError{Name: p.Name, Reason: Missing, Parameter: p}
		case !ok:
			value = p.Default
		}
		// The default is the administrators' choice, so it need not match the pattern.
		if value != p.Default || p.Required {
			if reason := p.Check(value); reason != "" {
				return nil, &ValueError{Name: p.Name, Reason: reason, Parameter: p}
			}
		}
		values[p.Name] = value
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, known := values[name]; !known {
			return nil, &ValueError{Name: name, Reason: Unknown}
		}
	}
	return values, nil
}

// Kept returns those values of another version's parameters that this version takes.
func (t Template) Kept(values map[string]string) map[string]string {
	kept := map[string]string{}
	for _, p := range t.Parameters {
		if v, ok := values[p.Name]; ok && p.Check(v) == "" {
			kept[p.Name] = v
		}
	}
	return kept
}

var reference = regexp.MustCompile(`\$\{param\.([^}]*)\}`)

// Use returns the use of the template with these values of its parameters; defaultImage is the
// image of a template that names none. The error is a *ValueError or an *environ.Error.
func (t Template) Use(given map[string]string, defaultImage string) (workspace.TemplateUse, error) {
	values, err := t.Values(given)
	if err != nil {
		return workspace.TemplateUse{}, err
	}
	s := workspace.TemplateSettings{Image: cmp.Or(t.Image, defaultImage), Size: workspace.SizeNamed(t.Size), StandbyTTL: t.Stop, ArchiveTTL: t.Archive,
		BackupInterval: t.BackupInterval, BackupKeep: t.BackupKeep}
	if len(t.Env) > 0 {
		s.Env = make(map[string]string, len(t.Env))
	}
	for name, text := range t.Env {
		s.Env[name] = fill(text, values)
	}
	if err := environ.Check(s.Env); err != nil {
		return workspace.TemplateUse{}, err
	}
	if s.Project, err = t.project(values); err != nil {
		return workspace.TemplateUse{}, err
	}
	return workspace.TemplateUse{Name: t.Name, Version: t.Version(), Parameters: values, Settings: s}, nil
}

// ParameterNames returns the names in ${param.NAME} of a text.
func parameterNames(text string) (names []string) {
	for _, m := range reference.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}
