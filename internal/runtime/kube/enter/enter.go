// Package enter is the beginning of a workspace whose user may become root. Its Pod has a user
// namespace, in which the first process is root: it puts the lists of users, of groups and of
// trusted authorities into /etc, where root can change them, and becomes the workspace's user. It is a command of the
// agent's executable.
package enter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"codehub/internal/base/trust"
)

// Command is the subcommand of the executable that runs Main.
const Command = "enter"

// Main runs `codehub enter UID FOLDER PROGRAM ARG…`, and returns only if that fails. It copies
// the files of the folder, if there is one, to /etc, and executes the program as the user and
// the group with this number.
func Main(args []string) int {
	err := errors.New("enter needs a uid, a folder and a program")
	if len(args) > 2 {
		err = enter(args[0], args[1], args[2:])
	}
	fmt.Fprintln(os.Stderr, "codehub enter:", err)
	return 126
}

func enter(uid, folder string, program []string) error {
	id, err := strconv.Atoi(uid)
	if err != nil || id <= 0 {
		return fmt.Errorf("%q is not the uid of a user", uid)
	}
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return fmt.Errorf("read the user namespace: %w", err)
	}
	if onHost(string(users)) { // a node may ignore what the cluster has accepted
		return errors.New("the Pod has no user namespace: root in it would be root of the node")
	}
	if err := errors.Join(copyFiles(folder, "/etc"), trust.Replace("/")); err != nil {
		return err
	}
	// Without root's capabilities. Those that a set-user-ID program gives stay possible.
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id)); err != nil {
		return fmt.Errorf("become the user %d: %w", id, err)
	}
	return syscall.Exec(program[0], program, os.Environ())
}

// onHost reports whether root of this namespace is root of the machine, by its map of uids.
func onHost(uids string) bool {
	for line := range strings.Lines(uids) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "0" {
			return f[1] == "0"
		}
	}
	return true
}

// copyFiles copies the files of a folder, replacing others. Kubernetes keeps the files behind
// links, and data of its own in entries whose names begin with two dots.
func copyFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, entry := range entries {
		if len(entry.Name()) > 1 && entry.Name()[:2] == ".." {
			continue
		}
		content, err := os.ReadFile(filepath.Join(from, entry.Name()))
		if err != nil {
			return err
		}
		// The image may have a link to elsewhere there.
		target := filepath.Join(to, entry.Name())
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(target, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
