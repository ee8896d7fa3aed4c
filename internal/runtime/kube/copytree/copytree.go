// Package copytree copies the IDE into a Pod whose node cannot mount images. It is a command
// of the agent's executable, which is the only one of codehub's in such a Pod.
package copytree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Command is the subcommand of the executable that runs Main.
const Command = "copy-tree"

// Main runs `codehub copy-tree FROM TO` and returns the exit code. It copies a folder's content
// into an empty folder.
func Main(args []string) int {
	err := errors.New("copy-tree needs two folders")
	if len(args) == 2 {
		err = copyTree(args[0], args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil || name == "." {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case entry.IsDir():
			return os.Mkdir(target, 0o755)
		case entry.Type() == fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case entry.Type().IsRegular():
			return copyFile(path, target)
		}
		return fmt.Errorf("%s is neither a file, a folder nor a link", path)
	})
}

// copyFile copies a file with its permissions.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
