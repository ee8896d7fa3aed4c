package devcontainer

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"codehub/internal/workspace/environ"
)

// reader fills an Environment from the properties of a file.
type reader struct {
	out   Environment
	place Place
	dir   string // of the file, below the repository
}

func parse(dir string, content []byte, place Place, opened func(folder, mounted string) (string, bool)) (Environment, error) {
	root, err := readJSON(content)
	if err != nil {
		return Environment{}, err
	}
	r := &reader{place: place, dir: dir}
	if err := r.variables(root, place, opened); err != nil {
		return Environment{}, err
	}
	r.properties(root)
	r.end()
	return r.out, nil
}

// end brings what was read into its order.
func (r *reader) end() {
	slices.SortFunc(r.out.Secrets, func(a, b Secret) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(r.out.Scripts, func(a, b Script) int { return a.Hook.Compare(b.Hook) })
	// ReasonMore stays the last one.
	slices.SortStableFunc(r.out.Ignored[:min(len(r.out.Ignored), maxListed)], func(a, b Ignored) int { return cmp.Compare(a.Line, b.Line) })
}

func (r *reader) ignore(property string, line int, reason Reason) {
	switch n := len(r.out.Ignored); {
	case n < maxListed:
		r.out.Ignored = append(r.out.Ignored, Ignored{shortened(property), line, reason})
	case n == maxListed:
		r.out.Ignored = append(r.out.Ignored, Ignored{Reason: ReasonMore, Line: line})
	}
}

// at keeps the line of a property.
func (r *reader) at(property string, n *node) {
	if r.out.lines == nil {
		r.out.lines = map[string]int{}
	}
	r.out.lines[property] = n.line
}

func joined(property, name string) string {
	if property == "" {
		return name
	}
	return property + "." + name
}

const maxProperty = 120 // characters

func shortened(s string) string {
	if list := []rune(s); len(list) > maxProperty {
		return string(list[:maxProperty-1]) + "…"
	}
	return s
}

// asks returns a function that lists a property unless it asks for nothing.
func (r *reader) asks(reason Reason) func(string, *node) {
	return func(property string, n *node) {
		if !n.nothing() {
			r.ignore(property, n.line, reason)
		}
	}
}

// none is for properties that mean nothing to a workspace.
func none(string, *node) {}

func (r *reader) properties(root *node) {
	known := map[string]func(string, *node){
		"$schema":                     none,
		"name":                        func(p string, n *node) { r.text(p, n, &r.out.Name) },
		"image":                       func(p string, n *node) { r.text(p, n, &r.out.Image) },
		"build":                       r.asks(ReasonBuild),
		"dockerFile":                  r.asks(ReasonBuild),
		"context":                     r.asks(ReasonBuild),
		"features":                    r.asks(ReasonFeatures),
		"overrideFeatureInstallOrder": r.asks(ReasonFeatures),
		"dockerComposeFile":           r.asks(ReasonCompose),
		"service":                     r.asks(ReasonCompose),
		"runServices":                 r.asks(ReasonCompose),
		"runArgs":                     r.asks(ReasonRunArgs),
		"mounts":                      r.asks(ReasonMounts),
		"privileged":                  r.asks(ReasonRights),
		"capAdd":                      r.asks(ReasonRights),
		"securityOpt":                 r.asks(ReasonRights),
		"initializeCommand":           r.asks(ReasonHostCommand),
		"workspaceMount":              r.asks(ReasonWorkspaceMount),
		"workspaceFolder": func(p string, n *node) { // see variables
			if n.kind != text && n.kind != null {
				r.ignore(p, n.line, ReasonType)
			}
		},
		"init":                none, // the agent is one
		"updateRemoteUserUID": func(p string, n *node) { r.value(p, n, ReasonUserID) },
		"waitFor":             func(p string, n *node) { r.value(p, n, ReasonWaitFor) },
		"userEnvProbe":        func(p string, n *node) { r.value(p, n, ReasonProbe) },
		"shutdownAction":      func(p string, n *node) { r.value(p, n, ReasonShutdown) },
		"overrideCommand": func(p string, n *node) {
			if n.kind != boolean || !n.yes {
				r.value(p, n, ReasonOverrideCommand)
			}
		},
		"remoteUser":           r.user,
		"containerUser":        r.user,
		"containerEnv":         func(p string, n *node) { r.env(p, n, &r.out.Env) },
		"remoteEnv":            func(p string, n *node) { r.env(p, n, &r.out.RemoteEnv) },
		"forwardPorts":         r.forwardPorts,
		"appPort":              r.forwardPorts,
		"portsAttributes":      r.portsAttributes,
		"otherPortsAttributes": r.asks(ReasonPortAttribute),
		"hostRequirements":     r.needs,
		"secrets":              r.secrets,
		"customizations":       r.customizations,
		"extensions":           r.extensions,
		"settings":             r.settings,
		"devPort":              r.asks(ReasonOtherTool),
	}
	for _, h := range hooks {
		known[string(h)] = func(p string, n *node) { r.script(h, p, n) }
	}
	if r.place.Builds {
		known["build"], known["dockerFile"], known["context"] = none, none, none // see build
		known["features"] = func(p string, n *node) { r.features(p, n, &r.out.Features) }
		known["overrideFeatureInstallOrder"] = func(p string, n *node) { r.featureNames(p, n, &r.out.FeatureOrder) }
	}
	// Ports have their attributes after it is known which are forwarded, and the older places of
	// extensions and settings come after those of today.
	last := func(key string) int { return slices.Index([]string{"extensions", "settings", "portsAttributes"}, key) }
	sorted := *root
	sorted.keys = slices.Clone(root.keys)
	slices.SortStableFunc(sorted.keys, func(a, b string) int { return cmp.Compare(last(a), last(b)) })
	r.read(&sorted, known)
	if r.place.Builds {
		r.build("build", "dockerfile", root.of["build"], root.of["dockerFile"], root.of["context"])
	}
}

// read calls the function of each property, and lists the unknown ones.
func (r *reader) read(root *node, known map[string]func(string, *node)) {
	for _, key := range root.keys {
		n := root.of[key]
		r.at(key, n)
		if read, ok := known[key]; ok {
			read(key, n)
			continue
		}
		r.ignore(key, n.line, ReasonUnknown)
	}
}

// value lists a property that has any value.
func (r *reader) value(property string, n *node, reason Reason) {
	if n.kind != null {
		r.ignore(property, n.line, reason)
	}
}

func (r *reader) text(property string, n *node, to *string) bool {
	switch n.kind {
	case text:
		*to = n.text
		return true
	case null:
	default:
		r.ignore(property, n.line, ReasonType)
	}
	return false
}

func (r *reader) user(property string, n *node) {
	name := ""
	if !r.text(property, n, &name) || name == "" {
		return
	}
	if property == "remoteUser" || r.out.User == "" {
		r.out.User = name
	}
	if name != r.place.User {
		r.ignore(property, n.line, ReasonUser)
	}
}

// fields calls do for each property of an object.
func (r *reader) fields(property string, n *node, do func(property, key string, n *node)) {
	if n.kind != object {
		r.value(property, n, ReasonType)
		return
	}
	for _, key := range n.keys {
		do(joined(property, key), key, n.of[key])
	}
}

// scalars calls do for each property of an object with its value as a text.
func (r *reader) scalars(property string, n *node, do func(property, key, value string, n *node)) {
	r.fields(property, n, func(p, key string, n *node) {
		switch n.kind {
		case null:
			r.ignore(p, n.line, ReasonUnset)
		case text, number:
			do(p, key, n.text, n)
		case boolean:
			do(p, key, strconv.FormatBool(n.yes), n)
		default:
			r.ignore(p, n.line, ReasonType)
		}
	})
}

func (r *reader) env(property string, n *node, to *map[string]string) {
	r.scalars(property, n, func(p, name, value string, n *node) {
		if *to == nil {
			*to = map[string]string{}
		}
		(*to)[name] = value
		r.at(p, n)
		// PATH may be longer for programs: see Workspace.
		if name == "PATH" && property == "remoteEnv" {
			return
		}
		if environ.CheckName(name) != nil {
			r.ignore(p, n.line, ReasonEnvName)
		}
	})
}

func validPort(n int) bool { return n > 0 && n < 1<<16 }

func (r *reader) forwardPorts(property string, n *node) {
	items := n.items
	if n.kind == number || n.kind == text {
		items = []*node{n}
	} else if n.kind != list {
		r.value(property, n, ReasonType)
		return
	}
	for _, each := range items {
		host, port := "", each.text
		if i := strings.LastIndexByte(port, ':'); i >= 0 {
			host, port = port[:i], port[i+1:]
		}
		if property == "appPort" { // HOST:CONTAINER
			host = ""
		}
		n, err := strconv.Atoi(port)
		shown := fmt.Sprintf("%s: %s", property, each.text)
		switch {
		case each.kind != number && each.kind != text || err != nil || !validPort(n):
			r.ignore(shown, each.line, ReasonType)
		case host != "" && host != "localhost" && host != "127.0.0.1":
			r.ignore(shown, each.line, ReasonPortHost)
		case r.port(n) == nil:
			r.out.Ports = append(r.out.Ports, Port{Port: n})
		}
	}
}

// port returns a port that was read, or nil.
func (r *reader) port(n int) *Port {
	for i := range r.out.Ports {
		if r.out.Ports[i].Port == n {
			return &r.out.Ports[i]
		}
	}
	return nil
}

func (r *reader) portOrNew(n int) *Port {
	if r.port(n) == nil {
		r.out.Ports = append(r.out.Ports, Port{Port: n})
	}
	return r.port(n)
}

func (r *reader) portsAttributes(property string, n *node) {
	r.fields(property, n, func(p, key string, n *node) {
		number, err := strconv.Atoi(strings.TrimPrefix(key, "localhost:"))
		switch {
		case err != nil && strings.Contains(key, ":"):
			r.ignore(p, n.line, ReasonPortHost)
			return
		case err != nil || !validPort(number):
			r.ignore(p, n.line, ReasonPortRange)
			return
		case n.kind != object:
			r.ignore(p, n.line, ReasonType)
			return
		}
		port := r.portOrNew(number)
		r.fields(p, n, func(p, key string, n *node) {
			switch key {
			case "label":
				r.text(p, n, &port.Label)
			case "onAutoForward":
				r.onAutoForward(p, n, port)
			case "protocol":
				if n.text != "http" {
					r.value(p, n, ReasonPortAttribute)
				}
			case "requireLocalPort", "elevateIfNeeded":
				r.asks(ReasonPortAttribute)(p, n)
			default:
				r.ignore(p, n.line, ReasonUnknown)
			}
		})
	})
}

func (r *reader) onAutoForward(property string, n *node, port *Port) {
	switch n.text {
	case "openBrowser", "openBrowserOnce", "open-browser", "openPreview", "open-preview":
		port.Open = true
	case "silent", "ignore": // codehub opens no port automatically
	case "notify":
		r.ignore(property, n.line, ReasonPortAttribute)
	default:
		r.ignore(property, n.line, ReasonType)
	}
}

func (r *reader) script(hook Hook, property string, n *node) {
	s := Script{Hook: hook}
	command := func(property, name string, n *node) {
		c := Command{Name: name}
		switch n.kind {
		case text:
			c.Shell = ofShell(n.text)
		case list:
			for _, each := range n.items {
				if each.kind != text {
					r.ignore(property, each.line, ReasonType)
					return
				}
				if strings.Contains(each.text, "${containerEnv:") {
					r.ignore(property+": "+each.text, each.line, ReasonVariable)
				}
				c.Args = append(c.Args, each.text)
			}
		case null:
		default:
			r.ignore(property, n.line, ReasonType)
			return
		}
		if strings.TrimSpace(c.Shell) != "" || len(c.Args) > 0 && c.Args[0] != "" {
			s.Commands = append(s.Commands, c)
		}
	}
	if n.kind == object {
		r.fields(property, n, command)
	} else {
		command(property, "", n)
	}
	if len(s.Commands) > 0 {
		r.out.Scripts = append(r.out.Scripts, s)
	}
}

var quantity = regexp.MustCompile(`^([0-9]+)\s*([kmgt]?)b?$`)

// bytesOf reads "8gb". The units are powers of 1024, as those of codehub's sizes.
func bytesOf(text string) (int64, bool) {
	m := quantity.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text)))
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	shift := 10 * strings.Index(" kmgt", cmp.Or(m[2], " "))
	if err != nil || n > (1<<60)>>shift {
		return 0, false
	}
	return n << shift, true
}

func (r *reader) needs(property string, n *node) {
	r.fields(property, n, func(p, key string, n *node) {
		if n.kind == null {
			return
		}
		var ok bool
		switch key {
		case "cpus":
			cpus, err := strconv.ParseFloat(n.text, 64)
			if ok = err == nil && cpus >= 0 && cpus <= 4096; ok {
				r.out.Needs.CPUs = cpus
			}
		case "memory":
			r.out.Needs.Memory, ok = bytesOf(n.text)
		case "storage":
			r.out.Needs.Storage, ok = bytesOf(n.text)
		case "gpu":
			if n.nothing() || n.text == "optional" {
				return
			}
			r.ignore(p, n.line, ReasonGPU)
			return
		default:
			r.ignore(p, n.line, ReasonUnknown)
			return
		}
		if !ok {
			r.ignore(p, n.line, ReasonType)
		}
	})
}

func (r *reader) secrets(property string, n *node) {
	r.fields(property, n, func(p, name string, n *node) {
		if environ.CheckName(name) != nil {
			r.ignore(p, n.line, ReasonEnvName)
			return
		}
		s := Secret{Name: name}
		r.fields(p, n, func(p, key string, n *node) {
			switch key {
			case "description":
				r.text(p, n, &s.Description)
			case "documentationUrl":
				if r.text(p, n, &s.URL); s.URL != "" && !strings.HasPrefix(s.URL, "https://") {
					s.URL = ""
					r.ignore(p, n.line, ReasonType)
				}
			default:
				r.ignore(p, n.line, ReasonUnknown)
			}
		})
		r.out.Secrets = append(r.out.Secrets, s)
	})
}

func (r *reader) customizations(property string, n *node) {
	r.fields(property, n, func(p, key string, n *node) {
		if key != "vscode" {
			r.asks(ReasonOtherTool)(p, n)
			return
		}
		r.fields(p, n, func(p, key string, n *node) {
			switch key {
			case "extensions":
				r.extensions(p, n)
			case "settings":
				r.settings(p, n)
			case "devPort":
				r.asks(ReasonOtherTool)(p, n)
			default:
				r.ignore(p, n.line, ReasonUnknown)
			}
		})
	})
}

var extensionID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]*\.[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (r *reader) extensions(property string, n *node) {
	if n.kind != list {
		r.value(property, n, ReasonType)
		return
	}
	for _, each := range n.items {
		id := strings.TrimSpace(each.text)
		shown := property + ": " + id
		switch base, _, _ := strings.Cut(id, "@"); {
		case each.kind != text:
			r.ignore(property, each.line, ReasonType)
		case strings.HasPrefix(id, "-"):
			r.ignore(shown, each.line, ReasonNoRemoval)
		case !extensionID.MatchString(base) || len(base) > maxProperty:
			r.ignore(shown, each.line, ReasonExtension)
		case !slices.ContainsFunc(r.out.Extensions, func(other string) bool { return strings.EqualFold(other, id) }):
			r.out.Extensions = append(r.out.Extensions, id)
		}
	}
}

func (r *reader) settings(property string, n *node) {
	if n.kind != object {
		r.value(property, n, ReasonType)
		return
	}
	if r.out.Settings == nil {
		r.out.Settings = map[string]any{}
	}
	for _, key := range n.keys {
		// Those of customizations come before the older place.
		if _, there := r.out.Settings[key]; !there || property != "settings" {
			r.out.Settings[key] = n.of[key].value()
		}
	}
}
