// Package account gives the user of workspaces a name, a home and a shell in any image. The
// agent and the IDE come on volumes, and the process is the workspace's user, whatever user
// the image expects.
package account

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

const (
	// User is the name of the user in every workspace.
	User = "coder"
	// AgentDir is where workspaces have the agent's executable, AgentFile.
	AgentDir  = "/opt/codehub"
	AgentFile = "codehub"
	// IDEDir is where they have the IDE, if their image does not bring one.
	IDEDir = "/opt/codehub-ide"
	// IDEStart starts the IDE, and IDEShell is the shell where the image has none.
	IDEStart = IDEDir + "/start"
	IDEShell = IDEDir + "/bin/sh"
	// LabelIDE on an image says where the IDE comes from. With IDEIncluded it is the
	// image's own: its ENTRYPOINT and CMD start it.
	LabelIDE    = "codehub.ide"
	IDEIncluded = "included"
	// PortURIEnv is the variable by which the IDE knows the addresses of ports, in which
	// {{port}} stands for the port. Its port view and links in its terminals lead there.
	PortURIEnv = "VSCODE_PROXY_URI"
	// SearchPath is the PATH of images without one.
	SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Shells are where the user's shell is looked for, the preferred ones first.
var shells = []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh", "/bin/ash"}

// Accounts are an image's lists of users and groups, to which a workspace adds its user.
type Accounts struct {
	Passwd string `json:"passwd,omitempty"`
	Group  string `json:"group,omitempty"`
	Shell  string `json:"shell,omitempty"` // of the workspace's user
	Tmp    bool   `json:"tmp,omitempty"`   // the image has /tmp
}

// Files returns the files of /etc that a workspace needs before its start, so that its user
// has this uid and a name.
func (a Accounts) Files(uid uint32) map[string]string {
	files := map[string]string{}
	for name, lists := range map[string][2]string{"passwd": {a.Passwd, withUser(a.Passwd, a.Shell, uid)}, "group": {a.Group, withGroup(a.Group, uid)}} {
		if lists[0] != lists[1] {
			files[name] = lists[1]
		}
	}
	return files
}

// FindShell returns the shell of the user: the one that the image gives it, or one of the
// usual ones, or else the IDE's. has reports whether the image has a file.
func FindShell(passwd string, has func(name string) (bool, error)) (string, error) {
	candidates := shells
	if shell := givenShell(passwd); shell != "" {
		candidates = append([]string{shell}, shells...)
	}
	for _, shell := range candidates {
		found, err := has(shell)
		if err != nil {
			return "", err
		}
		if found {
			return shell, nil
		}
	}
	return IDEShell, nil
}

// givenShell returns the shell that a list of users gives the workspace user, or "". A
// user of that name with another uid is another one, and a service's has no login.
func givenShell(passwd string) string {
	for line := range strings.Lines(passwd) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if fields[0] != User {
			continue
		}
		if len(fields) != 7 || fields[2] != fmt.Sprint(workspace.ArchivedUID) || !strings.HasPrefix(fields[6], "/") ||
			slices.Contains([]string{"false", "nologin", "true"}, path.Base(fields[6])) {
			return ""
		}
		return fields[6]
	}
	return ""
}

// withUser returns a list of users in which the workspace user is the first of its name
// and of its uid. The others stay, also one with the same uid.
func withUser(passwd, shell string, uid uint32) string {
	id := fmt.Sprint(uid)
	line := strings.Join([]string{User, "x", id, id, User, runtime.HomeDir, shell}, ":")
	isOurs := func(fields []string) bool {
		return len(fields) == 7 && fields[2] == id && fields[3] == id && fields[5] == runtime.HomeDir && fields[6] == shell
	}
	return withEntry(passwd, line, id, isOurs)
}

// withGroup does the same with a list of groups.
func withGroup(group string, gid uint32) string {
	id := fmt.Sprint(gid)
	return withEntry(group, User+":x:"+id+":", id, func(fields []string) bool { return len(fields) == 4 && fields[2] == id })
}

// withEntry returns the list unchanged if its entry of the workspace user is as wanted and
// no other has its number. Otherwise line is the first, and replaces those of that name.
func withEntry(list, line, id string, wanted func(fields []string) bool) string {
	var b strings.Builder
	b.WriteString(line + "\n")
	good, others := 0, 0
	for entry := range strings.Lines(list) {
		entry = strings.TrimRight(entry, "\r\n")
		fields := strings.Split(entry, ":")
		if fields[0] == User {
			if wanted(fields) {
				good++
			} else {
				others++
			}
			continue
		}
		if len(fields) > 2 && fields[2] == id {
			others++
		}
		b.WriteString(entry + "\n")
	}
	if good == 1 && others == 0 {
		return list
	}
	return b.String()
}

// Env returns the variables that make the workspace user at home in an image with
// these variables. The image's own search path is the first.
func Env(image []string, shell string) map[string]string {
	env := map[string]string{"HOME": runtime.HomeDir, "USER": User, "LOGNAME": User, "SHELL": shell}
	search, locale := SearchPath, false
	for _, variable := range image {
		name, value, _ := strings.Cut(variable, "=")
		switch name {
		case "PATH":
			search = value
		case "LANG", "LC_ALL", "LC_CTYPE":
			locale = locale || value != ""
		}
	}
	if !locale {
		env["LANG"] = "C.UTF-8"
	}
	for _, dir := range []string{runtime.HomeDir + "/.local/bin", AgentDir} {
		if !slices.Contains(strings.Split(search, ":"), dir) {
			search += ":" + dir
		}
	}
	if shell == IDEShell {
		search += ":" + path.Dir(IDEShell)
	}
	env["PATH"] = strings.TrimPrefix(search, ":")
	return env
}

// Environment returns the variables that a workspace adds to those of its image. own are
// those of the user at home, which come before defaults and after those of the spec; zoned
// says that the image sets TZ.
func Environment(spec runtime.ContainerSpec, own map[string]string, zoned bool, defaults []string) map[string]string {
	env := maps.Clone(own)
	if env == nil {
		env = map[string]string{}
	}
	for _, variable := range defaults {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	if spec.TimeZone != "" && !zoned {
		env["TZ"] = spec.TimeZone
	}
	maps.Copy(env, spec.Env)
	if home, ok := own["HOME"]; ok {
		env["HOME"] = home // a workspace has its files there
	}
	env[runtime.SecretEnv] = spec.Secret
	if spec.Setup {
		env[runtime.SetupEnv] = "1"
	}
	return env
}

// SetsZone reports whether an image with these variables sets the time zone.
func SetsZone(env []string) bool {
	return slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "TZ=") })
}
