package template

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
)

// fill returns text with the values of the parameters.
func fill(text string, values map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(m string) string { return values[reference.FindStringSubmatch(m)[1]] })
}

// project returns what the template gives to a workspace to work on, with these values; nil:
// nothing. The error is a *ValueError.
func (t Template) project(values map[string]string) (*workspace.Project, error) {
	if t.Project.Empty() {
		return nil, nil
	}
	p := t.Project
	p.Repositories = nil
	refused := func(names []string, reason string) error {
		if len(names) == 0 { // Parse has checked what has no parameter
			names = []string{""}
		}
		i := max(0, slices.IndexFunc(t.Parameters, func(p Parameter) bool { return p.Name == names[0] }))
		e := &ValueError{Name: names[0], Reason: reason}
		if i < len(t.Parameters) {
			e.Parameter = t.Parameters[i]
		}
		return e
	}
	var all []string
	for _, r := range t.Project.Repositories {
		address, branch := parameterNames(r.URL), parameterNames(r.Branch)
		all = append(all, address...)
		r.URL, r.Branch = fill(r.URL, values), fill(r.Branch, values)
		switch field, _ := workspace.FieldOf(r.Check()); field {
		case "":
		case "branch":
			return nil, refused(branch, NoBranch)
		default:
			return nil, refused(address, NoRepository)
		}
		p.Repositories = append(p.Repositories, r)
	}
	if p.Check() != nil { // two addresses lead to the same folder
		return nil, refused(all, SameFolder)
	}
	return &p, nil
}

// problemOf is what is wrong with a field, without its name and the full stop.
func problemOf(err error) (field, problem string) {
	var e *workspace.Error
	if !errors.As(err, &e) {
		return "", ""
	}
	field, _ = workspace.FieldOf(err)
	return field, strings.TrimSuffix(strings.TrimPrefix(e.Message, workspace.FieldLabel(field)+" "), ".")
}

// entries calls read for each entry of a list of mappings, with the functions of its fields.
func (r *reader) entries(field string, n *yaml.Node, most int, what string, read func(field string, n *yaml.Node)) {
	if !r.plain(n, field, yaml.SequenceNode, "a list of "+what) {
		return
	}
	if len(n.Content) > most {
		r.fail(n, field, "has more than %d entries", most)
		return
	}
	for i, c := range n.Content {
		f := fmt.Sprintf("%s[%d]", field, i)
		if c.Kind == yaml.ScalarNode && c.Tag == "!!null" {
			r.fail(c, f, "is empty")
			continue
		}
		read(f, c)
	}
}

// number returns a whole number from least to most.
func (r *reader) number(field string, n *yaml.Node, least, most int) int {
	s, ok := r.value(field, n)
	if !ok {
		return 0
	}
	number, err := strconv.Atoi(s)
	if err != nil || number < least || number > most {
		r.fail(n, field, "has to be a number from %d to %d", least, most)
		return 0
	}
	return number
}

// repositories reads the repositories. Those whose address has parameters are checked again with
// their values.
func (r *reader) repositories(field string, n *yaml.Node) (list []workspace.Repository) {
	at := map[string]*yaml.Node{}
	folders := workspace.Project{} // whose addresses are known
	r.entries(field, n, workspace.MaxRepositories, "repositories", func(f string, c *yaml.Node) {
		var repo workspace.Repository
		before := len(r.problems)
		defer func() { list = append(list, repo) }()
		r.object(f, c, map[string]func(string, *yaml.Node){
			"url":        func(f string, n *yaml.Node) { repo.URL, at[f] = r.text(f, n, MaxBytes), n },
			"branch":     func(f string, n *yaml.Node) { repo.Branch, at[f] = r.text(f, n, MaxBytes), n },
			"path":       func(f string, n *yaml.Node) { repo.Path, at[f] = r.text(f, n, MaxBytes), n },
			"depth":      func(f string, n *yaml.Node) { repo.Depth, at[f] = r.number(f, n, 0, workspace.MaxDepth), n },
			"submodules": func(f string, n *yaml.Node) { repo.Submodules = r.boolean(f, n) },
		})
		if len(r.problems) > before {
			return
		}
		check := repo
		if len(parameterNames(repo.URL)) > 0 {
			check.URL = "https://host/path"
		}
		if len(parameterNames(repo.Branch)) > 0 {
			check.Branch = ""
		}
		name, problem := problemOf(check.Check())
		if name == "repo" {
			name = "url"
		}
		if problem == "" && (len(parameterNames(repo.URL)) == 0 || repo.Path != "") {
			more := workspace.Project{Repositories: append(slices.Clone(folders.Repositories), check)}
			if name, problem = problemOf(more.Check()); problem == "" {
				folders = more
			}
		}
		if problem != "" {
			f = below(f, name)
			where := at[f]
			if where == nil {
				where = c
			}
			r.fail(where, f, "%s", problem)
		}
	})
	return list
}

// scripts reads the scripts; nil: none.
func (r *reader) scripts(field string, n *yaml.Node) *workspace.Scripts {
	var s workspace.Scripts
	r.object(field, n, map[string]func(string, *yaml.Node){
		"create":  func(f string, n *yaml.Node) { s.Create = r.script(f, n) },
		"start":   func(f string, n *yaml.Node) { s.Start = r.script(f, n) },
		"timeout": func(f string, n *yaml.Node) { s.Timeout = r.timeout(f, n) },
	})
	if s.Create == "" && s.Start == "" {
		if s.Timeout != 0 {
			r.fail(n, field, "have a timeout, but neither create nor start")
		}
		return nil
	}
	return &s
}

// extensions reads the names of extensions, each once.
func (r *reader) extensions(field string, n *yaml.Node) (list []string) {
	list = r.list(field, n, workspace.MaxExtensions, MaxValue)
	for i, name := range list {
		if !workspace.ValidExtension(name) {
			r.fail(n.Content[min(i, len(n.Content)-1)], field, "%q is not the name of an extension, such as golang.go or golang.go@0.50.0", name)
		}
	}
	return list
}

// ports reads the ports.
func (r *reader) ports(field string, n *yaml.Node) (list []workspace.ProjectPort) {
	r.entries(field, n, workspace.MaxProjectPorts, "ports", func(f string, c *yaml.Node) {
		var port workspace.ProjectPort
		at := c
		before := len(r.problems)
		r.object(f, c, map[string]func(string, *yaml.Node){
			"port":  func(f string, n *yaml.Node) { port.Port, at = r.number(f, n, 1, 65535), n },
			"label": func(f string, n *yaml.Node) { port.Label = r.text(f, n, workspace.MaxPortLabel) },
			"open":  func(f string, n *yaml.Node) { port.Open = r.boolean(f, n) },
		})
		if len(r.problems) > before {
			return
		}
		list = append(list, port)
		if _, problem := problemOf((&workspace.Project{Ports: list}).Check()); problem != "" {
			r.fail(at, f+".port", "%s", problem)
			list = list[:len(list)-1]
		}
	})
	return list
}

func portText(p workspace.ProjectPort) string {
	text := strings.TrimSpace(strconv.Itoa(p.Port) + " " + p.Label)
	if p.Open {
		text += ", open"
	}
	return text
}

// variables reads a list of names of environment variables.
func (r *reader) variables(field string, n *yaml.Node) (list []string) {
	list = r.list(field, n, workspace.MaxRequiredSecrets, MaxValue)
	for i, name := range list {
		var e *environ.Error
		if err := environ.CheckName(name); errors.As(err, &e) {
			r.fail(n.Content[min(i, len(n.Content)-1)], field, "is refused: %s", e.Error())
		}
	}
	return list
}

// script returns the text of a script.
func (r *reader) script(field string, n *yaml.Node) string {
	s, ok := r.value(field, n)
	switch {
	case !ok:
	case len(s) > workspace.MaxScript:
		r.fail(n, field, "is longer than %d bytes", workspace.MaxScript)
	case strings.ContainsFunc(s, func(c rune) bool { return c != '\n' && c != '\t' && workspace.Unprintable(c) }):
		r.fail(n, field, "has a control character")
	case strings.TrimSpace(s) == "":
		return ""
	}
	return s
}

// timeout returns a time limit in seconds.
func (r *reader) timeout(field string, n *yaml.Node) int {
	s, ok := r.value(field, n)
	if !ok || s == "" {
		return 0
	}
	d, err := parseTime(s)
	if err != nil || d < time.Second || d%time.Second != 0 || d > workspace.MaxScriptTimeout*time.Second {
		r.fail(n, field, "has to be a time from 1s to 1h, like 90s or 20m")
		return 0
	}
	return int(d / time.Second)
}

// RepositoryText is a repository in one line.
func RepositoryText(r workspace.Repository) string {
	text := r.URL
	for _, part := range []struct{ name, value string }{{"branch", r.Branch}, {"path", r.Path}} {
		if part.value != "" {
			text += ", " + part.name + " " + part.value
		}
	}
	if r.Depth > 0 {
		text += ", depth " + strconv.Itoa(r.Depth)
	}
	if r.Submodules {
		text += ", submodules"
	}
	return text
}

// DiffProject returns what differs between what two versions give to work on.
func DiffProject(from, to workspace.Project) (list []Change) {
	add := func(field, a, b string) {
		if a != b {
			list = append(list, Change{field, a, b})
		}
	}
	for i := range max(len(from.Repositories), len(to.Repositories)) {
		add(fmt.Sprintf("repositories[%d]", i), nth(from.Repositories, i, RepositoryText), nth(to.Repositories, i, RepositoryText))
	}
	a, b := scriptsOf(from), scriptsOf(to)
	add("scripts.create", a.Create, b.Create)
	add("scripts.start", a.Start, b.Start)
	add("scripts.timeout", timeoutText(a), timeoutText(b))
	for i := range max(len(from.Ports), len(to.Ports)) {
		add(fmt.Sprintf("ports[%d]", i), nth(from.Ports, i, portText), nth(to.Ports, i, portText))
	}
	add("secrets.required", strings.Join(from.Secrets, ", "), strings.Join(to.Secrets, ", "))
	add("extensions", strings.Join(from.Extensions, ", "), strings.Join(to.Extensions, ", "))
	return list
}

func scriptsOf(p workspace.Project) (s workspace.Scripts) {
	if p.Scripts != nil {
		s = *p.Scripts
	}
	return s
}

func timeoutText(s workspace.Scripts) string {
	if s.Timeout == 0 {
		return ""
	}
	return formatTime(s.Timeout)
}

// nth returns the text of the entry i, or "".
func nth[T any](list []T, i int, text func(T) string) string {
	if i >= len(list) {
		return ""
	}
	return text(list[i])
}

// formatProject writes what a template gives to work on.
func formatProject(root *yaml.Node, p workspace.Project) {
	put := func(to *yaml.Node, name, value string) {
		if value != "" {
			add(to, name, scalar(value))
		}
	}
	if len(p.Repositories) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, r := range p.Repositories {
			n := mapping()
			put(n, "url", r.URL)
			put(n, "branch", r.Branch)
			put(n, "path", r.Path)
			if r.Depth > 0 {
				add(n, "depth", plainValue(strconv.Itoa(r.Depth)))
			}
			if r.Submodules {
				add(n, "submodules", plainValue("true"))
			}
			list.Content = append(list.Content, n)
		}
		add(root, "repositories", list)
	}
	if s := p.Scripts; s != nil {
		n := mapping()
		put(n, "create", s.Create)
		put(n, "start", s.Start)
		put(n, "timeout", timeoutText(*s))
		add(root, "scripts", n)
	}
	if len(p.Ports) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, port := range p.Ports {
			n := mapping()
			n.Style = yaml.FlowStyle
			add(n, "port", plainValue(strconv.Itoa(port.Port)))
			put(n, "label", port.Label)
			if port.Open {
				add(n, "open", plainValue("true"))
			}
			list.Content = append(list.Content, n)
		}
		add(root, "ports", list)
	}
	if len(p.Secrets) > 0 {
		n := mapping()
		add(n, "required", sequence(p.Secrets))
		add(root, "secrets", n)
	}
	if len(p.Extensions) > 0 {
		add(root, "extensions", sequence(p.Extensions))
	}
}

// plainValue is a number, true or false.
func plainValue(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
