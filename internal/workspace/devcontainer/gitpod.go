package devcontainer

import (
	"path"
	"strconv"
	"strings"
)

// parseGitpod reads .gitpod.yml as far as it describes an environment. A task's "before" and "init"
// are a script that runs once, and "before" and "command" one that starts in the background at each
// start.
func parseGitpod(content []byte, place Place) (Environment, error) {
	root, err := readYAML(content)
	if err != nil {
		return Environment{}, err
	}
	r := &reader{place: place, dir: "."}
	r.out.Folder = place.Repository
	known := map[string]func(string, *node){
		"image": func(p string, n *node) {
			switch {
			case n.kind == object && place.Builds:
				r.build(p, "file", n, nil, nil)
			case n.kind == object:
				r.asks(ReasonBuild)(p, n)
			default:
				r.text(p, n, &r.out.Image)
			}
		},
		"tasks":             r.tasks,
		"ports":             r.gitpodPorts,
		"vscode":            r.gitpodEditor,
		"workspaceLocation": func(p string, n *node) { r.workspaceLocation(p, n) },
		"checkoutLocation":  func(p string, n *node) { r.value(p, n, ReasonFolder) },
		"github":            r.asks(ReasonPrebuild),
		"gitlab":            r.asks(ReasonPrebuild),
		"jetbrains":         r.asks(ReasonOtherTool),
	}
	r.read(root, known)
	r.end()
	return r.out, nil
}

// workspaceLocation is a folder below /workspace, in which the repository has its own.
func (r *reader) workspaceLocation(property string, n *node) {
	given := ""
	if !r.text(property, n, &given) || given == "" {
		return
	}
	given = path.Clean("/" + strings.TrimPrefix(given, "/workspace/"))[1:]
	inside, ok := below(given, path.Base(r.place.Repository))
	if !ok || strings.HasSuffix(given, ".code-workspace") { // the IDE opens the only one by itself
		r.ignore(property, n.line, ReasonFolder)
		return
	}
	r.out.Folder = path.Join(r.place.Repository, inside)
}

// GitpodLog is the file below the home that has the output of a task's command.
func GitpodLog(task int) string { return ".local/state/codehub/gitpod-" + strconv.Itoa(task) + ".log" }

func (r *reader) tasks(property string, n *node) {
	if n.kind != list {
		r.value(property, n, ReasonType)
		return
	}
	once, start := Script{Hook: PostCreate}, Script{Hook: PostStart}
	for i, task := range n.items {
		p := property + "[" + strconv.Itoa(i) + "]"
		var name, before, first, command, env string
		r.fields(p, task, func(p, key string, n *node) {
			switch key {
			case "name":
				r.text(p, n, &name)
			case "before":
				r.text(p, n, &before)
			case "init":
				r.text(p, n, &first)
			case "command":
				r.text(p, n, &command)
			case "env":
				r.scalars(p, n, func(p, key, value string, n *node) {
					if !validVariable(key) {
						r.ignore(p, n.line, ReasonEnvName)
						return
					}
					env += "export " + key + "=" + ShellWord(value) + "\n"
				})
			case "prebuild":
				r.ignore(p, n.line, ReasonPrebuild)
			case "openIn", "openMode":
				r.ignore(p, n.line, ReasonOtherTool)
			default:
				r.ignore(p, n.line, ReasonUnknown)
			}
		})
		if name == "" {
			name = strconv.Itoa(i + 1)
		}
		if strings.TrimSpace(first) != "" {
			once.Commands = append(once.Commands, Command{Name: name, Shell: env + lines(before, first)})
		}
		switch {
		case strings.TrimSpace(command) != "":
			log := `"$HOME/` + GitpodLog(i+1) + `"`
			start.Commands = append(start.Commands, Command{Name: name, Shell: `mkdir -p "${HOME}/.local/state/codehub"
nohup "$(command -v bash || command -v sh)" -c ` + ShellWord(env+lines(before, command)) + " >" + log + " 2>&1 </dev/null &"})
		case strings.TrimSpace(before) != "":
			start.Commands = append(start.Commands, Command{Name: name, Shell: env + before})
		}
	}
	for _, s := range []Script{once, start} {
		if len(s.Commands) > 0 {
			r.out.Scripts = append(r.out.Scripts, s)
		}
	}
}

func lines(a, b string) string {
	if strings.TrimSpace(a) == "" {
		return b
	}
	return a + "\n" + b
}

// ShellWord returns a text as one word of a shell.
func ShellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func validVariable(name string) bool {
	for i, c := range name {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func (r *reader) gitpodPorts(property string, n *node) {
	if n.kind != list {
		r.value(property, n, ReasonType)
		return
	}
	for i, each := range n.items {
		p := property + "[" + strconv.Itoa(i) + "]"
		if each.kind != object {
			r.ignore(p, each.line, ReasonType)
			continue
		}
		given := each.field("port")
		number, err := 0, error(nil)
		if given != nil {
			number, err = strconv.Atoi(given.text)
		}
		if err != nil || !validPort(number) {
			r.ignore(p, each.line, ReasonPortRange)
			continue
		}
		port := r.portOrNew(number)
		r.fields(p, each, func(p, key string, n *node) {
			switch key {
			case "port":
			case "name":
				r.text(p, n, &port.Label)
			case "description":
				if port.Label == "" {
					r.text(p, n, &port.Label)
				}
			case "onOpen":
				r.onAutoForward(p, n, port)
			case "visibility":
				if n.text != "private" {
					r.ignore(p, n.line, ReasonPortAttribute)
				}
			case "protocol":
				if n.text != "http" {
					r.ignore(p, n.line, ReasonPortAttribute)
				}
			default:
				r.ignore(p, n.line, ReasonUnknown)
			}
		})
	}
}

func (r *reader) gitpodEditor(property string, n *node) {
	r.fields(property, n, func(p, key string, n *node) {
		if key == "extensions" {
			r.extensions(p, n)
			return
		}
		r.ignore(p, n.line, ReasonUnknown)
	})
}
