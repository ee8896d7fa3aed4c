package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"codehub/internal/runtime/docker/wall"
)

// HelperCommand is the subcommand by which the codehub executable becomes the
// helper on the engine's host.
const HelperCommand = "host-helper"

const (
	cmdWall       = "wall"
	cmdRemoveHome = "remove-home"
)

// HelperMain runs `codehub host-helper args…` and returns the exit code. It is
// not for people: Runtime runs it in a short-lived container.
//
//	wall SPEC           sets the wall that the JSON describes (in the host's network)
//	remove-home PATH    removes a folder, whomever the files in it belong to
func HelperMain(args []string) int { return helperMain(args, os.Stderr) }

func helperMain(args []string, stderr io.Writer) int {
	if err := runAsHelper(args); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func runAsHelper(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: host-helper wall SPEC | remove-home PATH")
	}
	switch args[0] {
	case cmdWall:
		spec, err := wall.ParseSpec(args[1])
		if err != nil {
			return err
		}
		return wall.Stand(spec)
	case cmdRemoveHome:
		if !filepath.IsAbs(args[1]) || filepath.Clean(args[1]) == "/" {
			return fmt.Errorf("remove-home: %q is not a folder's absolute path", args[1])
		}
		return removeTree(context.Background(), args[1])
	}
	return fmt.Errorf("host-helper has no command %q", args[0])
}
