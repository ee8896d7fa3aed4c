package devcontainer

import (
	"path"
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`\$\{(.*?)\}`)

// substitute replaces ${NAME:ARG…} in a text by what value returns; ok is false for one that stays.
func substitute(text string, value func(name string, args []string) (string, bool)) string {
	if !strings.Contains(text, "${") {
		return text
	}
	return variable.ReplaceAllStringFunc(text, func(match string) string {
		parts := strings.Split(match[2:len(match)-1], ":")
		if v, ok := value(parts[0], parts[1:]); ok {
			return v
		}
		return match
	})
}

// eachText calls do for every text in the tree, with its property.
func (n *node) eachText(property string, do func(property string, n *node)) {
	switch n.kind {
	case text:
		do(property, n)
	case list:
		for _, each := range n.items {
			each.eachText(property, do)
		}
	case object:
		for _, key := range n.keys {
			n.of[key].eachText(joined(property, key), do)
		}
	}
}

// variables replaces the variables in all texts. opened returns the folder that is opened.
func (r *reader) variables(root *node, place Place, opened func(folder, mounted string) (string, bool)) error {
	var failed error
	root.eachText("", func(property string, n *node) {
		n.text = substitute(n.text, func(name string, args []string) (string, bool) {
			switch name {
			case "localWorkspaceFolder":
				return place.Repository, true
			case "localWorkspaceFolderBasename":
				return path.Base(place.Repository), true
			case "devcontainerId":
				return place.ID, true
			case "env", "localEnv":
				// A workspace is on no computer of its user.
				switch {
				case len(args) == 0:
					failed = &Error{Reason: NoName, Line: n.line}
					return "", false
				case len(args) == 1:
					r.ignore(joined(property, "${localEnv:"+args[0]+"}"), n.line, ReasonLocalEnv)
					return "", true
				}
				return args[1], true
			case "containerEnv":
				if len(args) == 0 {
					failed = &Error{Reason: NoName, Line: n.line}
				}
				return "", false
			case "containerWorkspaceFolder", "containerWorkspaceFolderBasename":
				return "", false
			}
			return "", false
		})
	})
	if failed != nil {
		return failed
	}
	folder := root.field("workspaceFolder")
	given := ""
	if folder != nil && folder.kind == text {
		given = folder.text
	}
	mounted := ""
	if m := root.field("workspaceMount"); m != nil && m.kind == text {
		mounted = mountTarget(m.text)
	}
	found, ok := opened(given, mounted)
	if !ok {
		r.ignore("workspaceFolder", folder.line, ReasonFolder)
	}
	r.out.Folder = found
	root.eachText("", func(property string, n *node) {
		n.text = substitute(n.text, func(name string, args []string) (string, bool) {
			switch name {
			case "containerWorkspaceFolder":
				return found, true
			case "containerWorkspaceFolderBasename":
				return path.Base(found), true
			case "containerEnv":
				return "", false
			}
			r.ignore(joined(property, "${"+strings.Join(append([]string{name}, args...), ":")+"}"), n.line, ReasonVariable)
			return "", false
		})
	})
	return nil
}

// ofShell returns a text for a shell with the shell's own form of ${containerEnv:NAME:DEFAULT}.
func ofShell(text string) string {
	return substitute(text, func(name string, args []string) (string, bool) {
		switch {
		case name != "containerEnv" || !validVariable(args[0]):
			return "", false
		case len(args) > 1:
			return "${" + args[0] + ":-" + args[1] + "}", true
		}
		return "${" + args[0] + "}", true
	})
}

// mountTarget returns where a mount of Docker, such as "source=x,target=/y,type=bind", is in the
// container.
func mountTarget(mount string) string {
	for part := range strings.SplitSeq(mount, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if name == "target" || name == "destination" || name == "dst" {
			return value
		}
	}
	return ""
}
