package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A workspace can have any image: the agent and the IDE come on volumes, and the process
// is the workspace user, whatever user the image expects. The user gets a name, a home
// and a shell by files that are copied into the container before its start.

const (
	workspaceUser = "coder"
	// searchPath is Docker's own PATH for images without one.
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// shells are where the user's shell is looked for, the preferred ones first.
var shells = []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh", "/bin/ash"}

// accounts are an image's lists of users and groups, to which a container adds the
// workspace's user.
type accounts struct {
	passwd, group string
	shell         string // of the workspace's user
	tmp           bool   // the image has /tmp
}

func (r *Runtime) readAccounts(ctx context.Context, image string) (a accounts, err error) {
	err = r.withImageFiles(ctx, image, func(f imageFiles) error {
		if a.passwd, _, err = f.read(ctx, "/etc/passwd"); err != nil {
			return err
		}
		if a.group, _, err = f.read(ctx, "/etc/group"); err != nil {
			return err
		}
		if a.shell, err = f.shell(ctx, a.passwd); err != nil {
			return err
		}
		a.tmp, err = f.has(ctx, "/tmp")
		return err
	})
	if err != nil {
		return accounts{}, fmt.Errorf("prepare the image for workspaces: %w", err)
	}
	return a, nil
}

// files returns the files of /etc that a container needs before its start, so that its
// user has this uid and a name.
func (a accounts) files(uid uint32) map[string]string {
	files := map[string]string{}
	for name, lists := range map[string][2]string{"passwd": {a.passwd, withUser(a.passwd, a.shell, uid)}, "group": {a.group, withGroup(a.group, uid)}} {
		if lists[0] != lists[1] {
			files[name] = lists[1]
		}
	}
	return files
}

// shell returns the shell of the user: the one that the image gives it, or one of the
// usual ones, or else the IDE's.
func (f imageFiles) shell(ctx context.Context, passwd string) (string, error) {
	candidates := shells
	if shell := givenShell(passwd); shell != "" {
		candidates = append([]string{shell}, shells...)
	}
	for _, shell := range candidates {
		found, err := f.has(ctx, shell)
		if err != nil {
			return "", err
		}
		if found {
			return shell, nil
		}
	}
	return ideShell, nil
}

// givenShell returns the shell that a list of users gives the workspace user, or "". A
// user of that name with another uid is another one, and a service's has no login.
func givenShell(passwd string) string {
	for line := range strings.Lines(passwd) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if fields[0] != workspaceUser {
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
	line := strings.Join([]string{workspaceUser, "x", id, id, workspaceUser, runtime.HomeDir, shell}, ":")
	isOurs := func(fields []string) bool {
		return len(fields) == 7 && fields[2] == id && fields[3] == id && fields[5] == runtime.HomeDir && fields[6] == shell
	}
	return withEntry(passwd, line, id, isOurs)
}

// withGroup does the same with a list of groups.
func withGroup(group string, gid uint32) string {
	id := fmt.Sprint(gid)
	return withEntry(group, workspaceUser+":x:"+id+":", id, func(fields []string) bool { return len(fields) == 4 && fields[2] == id })
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
		if fields[0] == workspaceUser {
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

// userEnv returns the variables that make the workspace user at home in an image with
// these variables. The image's own search path is the first.
func userEnv(image []string, shell string) map[string]string {
	env := map[string]string{"HOME": runtime.HomeDir, "USER": workspaceUser, "LOGNAME": workspaceUser, "SHELL": shell}
	search, locale := searchPath, false
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
	for _, dir := range []string{runtime.HomeDir + "/.local/bin", agentDir} {
		if !slices.Contains(strings.Split(search, ":"), dir) {
			search += ":" + dir
		}
	}
	if shell == ideShell {
		search += ":" + path.Dir(ideShell)
	}
	env["PATH"] = strings.TrimPrefix(search, ":")
	return env
}

// accountsTar returns the archive with files of /etc, and with /tmp.
func accountsTar(files map[string]string, tmp bool) ([]byte, error) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		if err := tw.WriteHeader(&tar.Header{Name: "etc/" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			return nil, err
		}
	}
	if tmp {
		if err := tw.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
			return nil, err
		}
	}
	err := tw.Close()
	return b.Bytes(), err
}

// makeReady prepares a created container for its start: its user has a name, and /tmp.
func (r *Runtime) makeReady(ctx context.Context, as runAs, uid uint32, id string) error {
	files := as.accounts.files(uid)
	if len(files) == 0 && as.accounts.tmp {
		return nil
	}
	if as.accounts.tmp {
		if done, err := r.nameHere(ctx, id, files); done || err != nil {
			return err
		}
	}
	content, err := accountsTar(files, !as.accounts.tmp)
	if err != nil {
		return err
	}
	_, err = r.api.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: bytes.NewReader(content)})
	return wrapError(ctx, "name the workspace's user in the container", err)
}
