package template

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"codehub/internal/workspace"
)

// Format writes a template as Parse reads it.
func Format(t Template) string {
	root := mapping()
	put := func(to *yaml.Node, name, value string) {
		if value != "" {
			add(to, name, scalar(value))
		}
	}
	texts := func(to *yaml.Node, name string, text Text) {
		switch {
		case len(text) == 0:
		case len(text) == 1 && text[Languages[0]] != "":
			add(to, name, scalar(text[Languages[0]]))
		default:
			n := mapping()
			for _, l := range Languages {
				put(n, l, text[l])
			}
			add(to, name, n)
		}
	}
	put(root, "name", t.Name)
	texts(root, "title", t.Title)
	texts(root, "description", t.Description)
	put(root, "icon", t.Icon)
	put(root, "image", t.Image)
	put(root, "size", t.Size)
	formatProject(root, t.Project)
	if len(t.Env) > 0 {
		n := mapping()
		for _, name := range slices.Sorted(maps.Keys(t.Env)) {
			add(n, name, scalar(t.Env[name]))
		}
		add(root, "env", n)
	}
	if len(t.Parameters) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, p := range t.Parameters {
			n := mapping()
			put(n, "name", p.Name)
			texts(n, "title", p.Title)
			texts(n, "description", p.Description)
			put(n, "type", p.Type)
			if !p.Required {
				add(n, "default", scalar(p.Default))
			}
			put(n, "pattern", p.Pattern)
			if len(p.Options) > 0 {
				add(n, "options", sequence(p.Options))
			}
			list.Content = append(list.Content, n)
		}
		add(root, "parameters", list)
	}
	if t.Stop != nil || t.Archive != nil {
		n := mapping()
		if t.Stop != nil {
			put(n, "stop", formatTime(*t.Stop))
		}
		if t.Archive != nil {
			put(n, "archive", formatTime(*t.Archive))
		}
		add(root, "idle", n)
	}
	if t.BackupInterval != nil || t.BackupKeep != "" {
		n := mapping()
		if t.BackupInterval != nil {
			put(n, "interval", formatTime(*t.BackupInterval))
		}
		put(n, "keep", t.BackupKeep)
		add(root, "backup", n)
	}
	if len(t.Groups) > 0 {
		add(root, "groups", sequence(t.Groups))
	}
	if t.Hidden {
		add(root, "hidden", plainValue("true"))
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		panic(err) // texts alone
	}
	return b.String()
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

func sequence(list []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range list {
		n.Content = append(n.Content, scalar(s))
	}
	return n
}

func add(to *yaml.Node, name string, value *yaml.Node) {
	to.Content = append(to.Content, scalar(name), value)
}

// scalar is a text, in quotes where YAML would read another type.
func scalar(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

func formatTime(seconds int) string {
	d := time.Duration(seconds) * time.Second
	switch {
	case seconds == 0:
		return "never"
	case d%(24*time.Hour) == 0:
		return strconv.Itoa(seconds/86400) + "d"
	case d%time.Hour == 0:
		return strconv.Itoa(seconds/3600) + "h"
	case d%time.Minute == 0:
		return strconv.Itoa(seconds/60) + "m"
	}
	return strconv.Itoa(seconds) + "s"
}

// Of returns the YAML of a template that gives the settings of a workspace. The values of its
// environment variables may be secrets, so only those that its own template gave are in it, unless
// they have a parameter's value; of the others it has the names, as comments.
func Of(name string, w workspace.Workspace) string {
	t := Template{Name: name, Title: Text{Languages[0]: w.Name}, Image: w.ImageRef, Size: w.Size, Stop: w.StandbyTTL, Archive: w.ArchiveTTL,
		BackupInterval: w.BackupInterval, BackupKeep: w.BackupKeep}
	if w.Description != "" && len([]rune(w.Description)) <= MaxDescription {
		t.Description = Text{Languages[0]: w.Description}
	}
	if title := []rune(w.Name); len(title) > MaxTitle {
		t.Title[Languages[0]] = string(title[:MaxTitle])
	}
	if w.Project != nil {
		t.Project = *w.Project
	}
	var others []string
	for _, v := range slices.Sorted(maps.Keys(w.Env)) {
		value := w.Env[v]
		if w.Template != nil && w.Template.Settings.Env[v] == value && !hasAny(value, w.Template.Parameters) {
			if t.Env == nil {
				t.Env = map[string]string{}
			}
			t.Env[v] = strings.ReplaceAll(value, "${param.", "$ {param.")
			continue
		}
		others = append(others, v)
	}
	text := Format(t)
	if len(others) > 0 {
		text += "\n# Further variables of the workspace, whose values may be secrets:\n"
		for _, v := range others {
			text += "#   " + v + ": \n"
		}
	}
	return text
}

// hasAny reports whether a text has one of these values in it.
func hasAny(text string, values map[string]string) bool {
	for _, v := range values {
		if v != "" && strings.Contains(text, v) {
			return true
		}
	}
	return false
}
