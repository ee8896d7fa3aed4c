package template

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/imageref"
)

// maxProblems bounds how many mistakes Parse reports.
const maxProblems = 20

// Parse reads a template. name is that of its file or address; a name in the text has to be the
// same. The error is of the type Problems.
func Parse(name string, text []byte) (Template, error) {
	t := Template{Name: name, lines: map[string]int{}}
	if len(text) > MaxBytes {
		return t, Problems{{Line: 1, Text: fmt.Sprintf("The template is longer than %d bytes", MaxBytes)}}
	}
	if !utf8.Valid(text) {
		return t, Problems{{Line: 1 + bytes.Count(text[:invalidAt(text)], []byte("\n")), Text: "The text is not valid UTF-8"}}
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return t, Problems{{Line: 1, Text: "The template is empty"}}
	} else if err != nil {
		return t, Problems{syntax(err)}
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		return t, Problems{{Line: second.Line, Text: "A template is one document"}}
	} else if !errors.Is(err, io.EOF) {
		return t, Problems{syntax(err)}
	}
	r := &reader{t: &t}
	r.object("", doc.Content[0], map[string]func(string, *yaml.Node){
		"name": func(f string, n *yaml.Node) {
			if given := r.text(f, n, MaxName); given != "" && given != name {
				r.fail(n, f, "is %q, but the file or address has the name %q", given, name)
			}
		},
		"title":       func(f string, n *yaml.Node) { t.Title = r.translated(f, n, MaxTitle, false) },
		"description": func(f string, n *yaml.Node) { t.Description = r.translated(f, n, MaxDescription, true) },
		"icon": func(f string, n *yaml.Node) {
			if t.Icon = r.text(f, n, MaxName); t.Icon != "" && !slices.Contains(Icons, t.Icon) {
				r.fail(n, f, "%q is unknown; use one of: %s", t.Icon, strings.Join(Icons, ", "))
			}
		},
		"image": func(f string, n *yaml.Node) {
			if t.Image = r.text(f, n, imageref.MaxLength); t.Image != "" && !imageref.Valid(t.Image) {
				r.fail(n, f, "%q is not an image reference", t.Image)
			}
		},
		"size":       func(f string, n *yaml.Node) { t.Size = r.text(f, n, workspace.MaxSizeName) },
		"env":        func(f string, n *yaml.Node) { t.Env = r.env(f, n) },
		"parameters": func(f string, n *yaml.Node) { t.Parameters = r.parameters(f, n) },
		"idle": func(f string, n *yaml.Node) {
			r.object(f, n, map[string]func(string, *yaml.Node){
				"stop":    func(f string, n *yaml.Node) { t.Stop = r.idle(f, n) },
				"archive": func(f string, n *yaml.Node) { t.Archive = r.idle(f, n) },
			})
		},
		"backup": func(f string, n *yaml.Node) {
			r.object(f, n, map[string]func(string, *yaml.Node){
				"interval": func(f string, n *yaml.Node) {
					t.BackupInterval = r.idle(f, n)
					if v := t.BackupInterval; v != nil && *v > 0 && *v < workspace.MinBackupInterval {
						r.fail(n, f, "has to be at least %dm, or never", workspace.MinBackupInterval/60)
					}
				},
				"keep": func(f string, n *yaml.Node) {
					t.BackupKeep = r.text(f, n, workspace.MaxBackupKeep)
					if _, err := workspace.ParseKeep(t.BackupKeep); t.BackupKeep != "" && err != nil {
						r.fail(n, f, "has to be a rule like 24h,7d,4w,6m")
					}
				},
			})
		},
		"repositories": func(f string, n *yaml.Node) { t.Project.Repositories = r.repositories(f, n) },
		"scripts":      func(f string, n *yaml.Node) { t.Project.Scripts = r.scripts(f, n) },
		"extensions":   func(f string, n *yaml.Node) { t.Project.Extensions = r.extensions(f, n) },
		"ports":        func(f string, n *yaml.Node) { t.Project.Ports = r.ports(f, n) },
		"secrets": func(f string, n *yaml.Node) {
			r.object(f, n, map[string]func(string, *yaml.Node){
				"required": func(f string, n *yaml.Node) { t.Project.Secrets = r.variables(f, n) },
			})
		},
		"groups": func(f string, n *yaml.Node) {
			t.Groups = r.list(f, n, MaxGroups, 64)
		},
		"hidden": func(f string, n *yaml.Node) { t.Hidden = r.boolean(f, n) },
	})
	if !ValidName(name) {
		r.fail(doc.Content[0], "name", "has to be of lowercase letters, digits and hyphens, at most %d", MaxName)
	}
	r.references()
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
		return t, r.problems
	}
	return t, nil
}

func invalidAt(text []byte) int {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(text)
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?line (\d+): (.*)`)

// syntax returns the problem of a text that is not YAML.
func syntax(err error) Problem {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return Problem{Line: max(line, 1), Text: "This is not YAML: " + m[2]}
	}
	return Problem{Line: 1, Text: "This is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
}

// reader collects the problems of a template.
type reader struct {
	t        *Template
	problems Problems
}

func (r *reader) fail(n *yaml.Node, field, format string, args ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, Problem{Line: max(n.Line, 1), Field: field, Text: fmt.Sprintf(format, args...)})
	}
}

// plain reports whether n is of the kind, and neither an anchor nor an alias.
func (r *reader) plain(n *yaml.Node, field string, kind yaml.Kind, what string) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.fail(n, field, "has an anchor or alias, which templates do not support")
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null" && kind != yaml.ScalarNode:
		return false // a field without a value
	case n.Kind != kind:
		r.fail(n, field, "has to be %s", what)
	default:
		return true
	}
	return false
}

// object calls the function of each field of a mapping, and refuses other fields.
func (r *reader) object(field string, n *yaml.Node, known map[string]func(field string, n *yaml.Node)) {
	r.each(field, n, func(name string, key, value *yaml.Node) {
		read, ok := known[name]
		if !ok {
			r.fail(key, below(field, name), "is unknown; the fields are: %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			return
		}
		read(below(field, name), value)
	})
}

// each calls do for each key of a mapping, once.
func (r *reader) each(field string, n *yaml.Node, do func(name string, key, value *yaml.Node)) {
	if !r.plain(n, field, yaml.MappingNode, "fields with values, like name: value") {
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !r.plain(key, field, yaml.ScalarNode, "fields with values, like name: value") {
			continue
		}
		if seen[key.Value] {
			r.fail(key, below(field, key.Value), "is given twice")
			continue
		}
		seen[key.Value] = true
		r.t.lines[below(field, key.Value)] = key.Line
		do(key.Value, key, value)
	}
}

func below(field, name string) string {
	if !utf8.ValidString(name) || len(name) > 100 {
		name = strings.ToValidUTF8(name[:min(len(name), 100)], "") + "…"
	}
	if strings.ContainsFunc(name, workspace.Unprintable) || name == "" {
		name = strconv.Quote(name)
	}
	if field == "" {
		return name
	}
	return field + "." + name
}

// value returns a scalar as it is written; null is empty.
func (r *reader) value(field string, n *yaml.Node) (string, bool) {
	if !r.plain(n, field, yaml.ScalarNode, "one value") {
		return "", false
	}
	if n.Tag == "!!null" {
		return "", true
	}
	if n.Tag == "!!binary" {
		r.fail(n, field, "has to be text")
		return "", false
	}
	return n.Value, true
}

// text returns a line of text.
func (r *reader) text(field string, n *yaml.Node, most int) string {
	s, ok := r.value(field, n)
	s = strings.TrimSpace(s)
	switch {
	case !ok:
	case utf8.RuneCountInString(s) > most:
		r.fail(n, field, "is longer than %d characters", most)
	case strings.ContainsFunc(s, workspace.Unprintable):
		r.fail(n, field, "has a control character or a line break")
	}
	return s
}

// translated returns a text, or texts by language.
func (r *reader) translated(field string, n *yaml.Node, most int, lines bool) Text {
	one := func(f string, n *yaml.Node) string {
		if !lines {
			return r.text(f, n, most)
		}
		s, ok := r.value(f, n)
		s = strings.TrimSpace(s)
		switch {
		case !ok:
		case utf8.RuneCountInString(s) > most:
			r.fail(n, f, "is longer than %d characters", most)
		case strings.ContainsFunc(strings.ReplaceAll(s, "\n", ""), workspace.Unprintable):
			r.fail(n, f, "has a control character")
		}
		return s
	}
	if n.Kind == yaml.ScalarNode {
		if s := one(field, n); s != "" {
			return Text{Languages[0]: s}
		}
		return nil
	}
	t := Text{}
	read := map[string]func(string, *yaml.Node){}
	for _, l := range Languages {
		read[l] = func(f string, n *yaml.Node) {
			if s := one(f, n); s != "" {
				t[l] = s
			}
		}
	}
	r.object(field, n, read)
	if len(t) == 0 {
		return nil
	}
	return t
}

func (r *reader) boolean(field string, n *yaml.Node) bool {
	s, ok := r.value(field, n)
	if ok && s != "true" && s != "false" {
		r.fail(n, field, "has to be true or false")
	}
	return s == "true"
}

// list returns a list of different, visible texts.
func (r *reader) list(field string, n *yaml.Node, most, length int) (list []string) {
	if !r.plain(n, field, yaml.SequenceNode, "a list, like [one, two]") {
		return nil
	}
	if len(n.Content) > most {
		r.fail(n, field, "has more than %d entries", most)
		return nil
	}
	for _, c := range n.Content {
		s := r.text(field, c, length)
		switch {
		case s == "":
			r.fail(c, field, "has an empty entry")
		case slices.Contains(list, s):
			r.fail(c, field, "has %q twice", s)
		default:
			list = append(list, s)
		}
	}
	return list
}

// idle returns a timeout in seconds.
func (r *reader) idle(field string, n *yaml.Node) *int {
	s, ok := r.value(field, n)
	if !ok || s == "" {
		return nil
	}
	seconds := 0
	if s != "never" {
		d, err := parseTime(s)
		if err != nil || d < time.Second || d%time.Second != 0 || d > workspace.MaxTTL*time.Second {
			r.fail(n, field, "has to be a time like 30m, 3h or 2d, or never")
			return nil
		}
		seconds = int(d / time.Second)
	}
	return &seconds
}

// parseTime reads a duration, also in days.
func parseTime(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > workspace.MaxTTL/86400 {
			return 0, errors.New("not a number of days")
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	return time.ParseDuration(s)
}

func (r *reader) env(field string, n *yaml.Node) map[string]string {
	env := map[string]string{}
	r.each(field, n, func(name string, key, value *yaml.Node) {
		f := below(field, name)
		text, ok := r.value(f, value)
		if !ok {
			return
		}
		// The text is checked again with the values of the parameters.
		var e *environ.Error
		if err := environ.Check(map[string]string{name: text}); errors.As(err, &e) {
			r.fail(key, f, "is refused: %s", e.Error())
			return
		}
		env[name] = text
	})
	var e *environ.Error
	if err := environ.Check(env); errors.As(err, &e) {
		r.fail(n, field, "is refused: %s", e.Error())
	}
	if len(env) == 0 {
		return nil
	}
	return env
}

func (r *reader) parameters(field string, n *yaml.Node) (list []Parameter) {
	if !r.plain(n, field, yaml.SequenceNode, "a list of parameters") {
		return nil
	}
	if len(n.Content) > MaxParameters {
		r.fail(n, field, "has more than %d entries", MaxParameters)
		return nil
	}
	for i, c := range n.Content {
		f := fmt.Sprintf("%s[%d]", field, i)
		p := Parameter{Type: String, Required: true}
		var at struct{ name, def, pattern, options *yaml.Node }
		r.object(f, c, map[string]func(string, *yaml.Node){
			"name":        func(f string, n *yaml.Node) { p.Name, at.name = r.text(f, n, MaxName), n },
			"title":       func(f string, n *yaml.Node) { p.Title = r.translated(f, n, MaxTitle, false) },
			"description": func(f string, n *yaml.Node) { p.Description = r.translated(f, n, MaxDescription, true) },
			"type": func(f string, n *yaml.Node) {
				if p.Type = r.text(f, n, MaxName); !slices.Contains([]string{String, Choice, Boolean}, p.Type) {
					r.fail(n, f, "%q is unknown; use one of: %s, %s, %s", p.Type, String, Choice, Boolean)
				}
			},
			"default": func(f string, n *yaml.Node) {
				s, ok := r.value(f, n)
				p.Default, p.Required, at.def = s, !ok, n
			},
			"pattern": func(f string, n *yaml.Node) {
				s, _ := r.value(f, n)
				p.Pattern, at.pattern = s, n
				if _, err := compile(s); err != nil || len(s) > MaxValue {
					r.fail(n, f, "is not a regular expression")
				}
			},
			"options": func(f string, n *yaml.Node) { p.Options, at.options = r.list(f, n, MaxOptions, MaxValue), n },
		})
		if c.Kind != yaml.MappingNode {
			if c.Kind == yaml.ScalarNode && c.Tag == "!!null" {
				r.fail(c, f, "is empty")
			}
			continue
		}
		switch {
		case !ValidName(p.Name):
			r.fail(cmp.Or(at.name, c), f+".name", "has to be of lowercase letters, digits and hyphens, at most %d", MaxName)
		case slices.ContainsFunc(list, func(o Parameter) bool { return o.Name == p.Name }):
			r.fail(cmp.Or(at.name, c), f+".name", "%q is given twice", p.Name)
		case p.Type == Choice && len(p.Options) == 0:
			r.fail(cmp.Or(at.options, c), f+".options", "has no entry to choose")
		case p.Type != Choice && at.options != nil:
			r.fail(at.options, f+".options", "is only for parameters of type choice")
		case p.Type != String && at.pattern != nil:
			r.fail(at.pattern, f+".pattern", "is only for parameters of type string")
		}
		if p.Type == Boolean && p.Required {
			p.Default, p.Required = "false", false
		}
		// The empty text may stand for none.
		if !p.Required && (p.Type != String || p.Default != "") && p.Check(p.Default) != "" && at.def != nil {
			r.fail(at.def, f+".default", "is refused: %s", (&ValueError{Name: p.Name, Reason: p.Check(p.Default), Parameter: p}).Error())
		}
		list = append(list, p)
	}
	return list
}

// references refuses ${param.NAME} of a parameter that there is not.
func (r *reader) references() {
	check := func(field, text string) {
		for _, param := range parameterNames(text) {
			if !slices.ContainsFunc(r.t.Parameters, func(p Parameter) bool { return p.Name == param }) {
				r.fail(&yaml.Node{Line: r.t.lines[field]}, field, "names a parameter %q that the template does not have", param)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.t.Env)) {
		check(below("env", name), r.t.Env[name])
	}
	for i, repo := range r.t.Project.Repositories {
		check(fmt.Sprintf("repositories[%d].url", i), repo.URL)
		check(fmt.Sprintf("repositories[%d].branch", i), repo.Branch)
	}
}
