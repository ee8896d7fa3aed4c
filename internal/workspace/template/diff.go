package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Change is a difference between two versions of a template. A value that is not set is empty.
type Change struct {
	Field    string // such as env.GOFLAGS
	From, To string
}

// Diff returns what differs between two versions, in the order of the format.
func Diff(from, to Template) (list []Change) {
	add := func(field, a, b string) {
		if a != b {
			list = append(list, Change{field, a, b})
		}
	}
	texts := func(field string, a, b Text) {
		for _, l := range Languages {
			add(field+"."+l, a[l], b[l])
		}
	}
	texts("title", from.Title, to.Title)
	texts("description", from.Description, to.Description)
	add("icon", from.Icon, to.Icon)
	add("image", from.Image, to.Image)
	add("size", from.Size, to.Size)
	list = append(list, DiffProject(from.Project, to.Project)...)
	names := maps.Clone(from.Env)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, to.Env)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, had := from.Env[name]
		b, has := to.Env[name]
		if had != has || a != b {
			list = append(list, Change{"env." + name, a, b})
		}
	}
	parameters := map[string][2]string{}
	for i, t := range []Template{from, to} {
		for _, p := range t.Parameters {
			v := parameters[p.Name]
			v[i] = p.summary()
			parameters[p.Name] = v
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		add("parameters."+name, parameters[name][0], parameters[name][1])
	}
	idle := func(n *int) string {
		if n == nil {
			return ""
		}
		return formatTime(*n)
	}
	add("idle.stop", idle(from.Stop), idle(to.Stop))
	add("idle.archive", idle(from.Archive), idle(to.Archive))
	add("backup.interval", idle(from.BackupInterval), idle(to.BackupInterval))
	add("backup.keep", from.BackupKeep, to.BackupKeep)
	add("groups", strings.Join(from.Groups, ", "), strings.Join(to.Groups, ", "))
	if from.Hidden != to.Hidden {
		list = append(list, Change{"hidden", fmt.Sprint(from.Hidden), fmt.Sprint(to.Hidden)})
	}
	return list
}

// summary is the parameter in one line.
func (p Parameter) summary() string {
	s := p.Type
	if p.Required {
		s += ", required"
	} else {
		s += fmt.Sprintf(", default %q", p.Default)
	}
	if p.Pattern != "" {
		s += ", pattern " + p.Pattern
	}
	if len(p.Options) > 0 {
		s += ", options " + strings.Join(p.Options, ", ")
	}
	return s + titles(p.Title) + titles(p.Description)
}

func titles(t Text) string {
	s := ""
	for _, l := range Languages {
		if t[l] != "" {
			s += fmt.Sprintf(", %s %q", l, t[l])
		}
	}
	return s
}
