package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
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

// anyImage is what a workspace runs whose image does not bring the IDE.
func (r *Runtime) anyImage(ctx context.Context, id string, cfg imageConfig) (runAs, error) {
	as := runAs{user: asWorkspaceUser, command: []string{ideStart}}
	err := r.lookInto(ctx, id, func(f imageFiles) error {
		passwd, _, err := f.read(ctx, "/etc/passwd")
		if err != nil {
			return err
		}
		group, _, err := f.read(ctx, "/etc/group")
		if err != nil {
			return err
		}
		shell, err := f.shell(ctx, passwd)
		if err != nil {
			return err
		}
		accounts := map[string]string{"etc/passwd": withUser(passwd, shell), "etc/group": withGroup(group)}
		named := accounts["etc/passwd"] == passwd && accounts["etc/group"] == group
		if named {
			accounts = nil
		}
		temporary, err := f.has(ctx, "/tmp")
		if err != nil {
			return err
		}
		if !named || !temporary {
			if as.accounts, err = accountsTar(accounts, !temporary); err != nil {
				return err
			}
		}
		// Such an image was made for this user, and so was its home.
		as.own = !named || !slices.Contains([]string{asWorkspaceUser, fmt.Sprint(workspaceUID), workspaceUser}, cfg.user)
		as.env = userEnv(cfg.env, shell)
		return nil
	})
	if err != nil {
		return runAs{}, fmt.Errorf("prepare the image for workspaces: %w", err)
	}
	return as, nil
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
		if len(fields) != 7 || fields[2] != fmt.Sprint(workspaceUID) || !strings.HasPrefix(fields[6], "/") ||
			slices.Contains([]string{"false", "nologin", "true"}, path.Base(fields[6])) {
			return ""
		}
		return fields[6]
	}
	return ""
}

// withUser returns a list of users in which the workspace user is the first of its name
// and of its uid. The others stay, also one with the same uid.
func withUser(passwd, shell string) string {
	line := fmt.Sprintf("%s:x:%d:%d:%[1]s:%[4]s:%[5]s", workspaceUser, workspaceUID, workspaceUID, runtime.HomeDir, shell)
	isOurs := func(fields []string) bool {
		return len(fields) == 7 && fields[2] == fmt.Sprint(workspaceUID) && fields[3] == fields[2] && fields[5] == runtime.HomeDir && fields[6] == shell
	}
	return withEntry(passwd, line, isOurs)
}

// withGroup does the same with a list of groups.
func withGroup(group string) string {
	return withEntry(group, fmt.Sprintf("%s:x:%d:", workspaceUser, workspaceUID), func(fields []string) bool {
		return len(fields) == 4 && fields[2] == fmt.Sprint(workspaceUID)
	})
}

// withEntry returns the list unchanged if its entry of the workspace user is as wanted and
// no other has its number. Otherwise line is the first, and replaces those of that name.
func withEntry(list, line string, wanted func(fields []string) bool) string {
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
		if len(fields) > 2 && fields[2] == fmt.Sprint(workspaceUID) {
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

// accountsTar returns the archive with the files, and with /tmp.
func accountsTar(files map[string]string, tmp bool) ([]byte, error) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, name := range []string{"etc/passwd", "etc/group"} {
		content, ok := files[name]
		if !ok {
			continue
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
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

// makeReady prepares a created container for its start: the home is the user's, and the
// user has a name.
func (r *Runtime) makeReady(ctx context.Context, spec runtime.ContainerSpec, as runAs, id string) error {
	if as.own {
		if err := r.ownHome(ctx, spec); err != nil {
			return err
		}
	}
	if as.accounts == nil {
		return nil
	}
	_, err := r.api.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: bytes.NewReader(as.accounts)})
	return wrapError(ctx, "name the workspace's user in the container", err)
}
