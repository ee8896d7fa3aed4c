package docker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/home"
	"codehub/internal/runtime/docker/tools"
	"codehub/internal/runtime/docker/wall"
)

// HelperCommand is the subcommand that calls HelperMain.
const HelperCommand = helper.Command

// wallTable matches the names of the installations' nftables tables; see engine.Names.
var wallTable = regexp.MustCompile(`^codehub-[0-9a-f]{8}(-build)?$`)

// HelperMain runs `codehub host-helper args…` in a short-lived container and
// returns the exit code. It is internal to Runtime.
//
//	wall SPEC           applies the wall described by the JSON (host network)
//	remove-wall TABLE   removes the wall (host network)
//	remove-home PATH    removes a directory with files of any owner
//	empty-home PATH     removes a directory's content durably
//	is-empty PATH       fails if the directory has entries
//	own-home UID FROM PATH
//	                    gives a home to a uid (archive.ChangeOwner) and prints the number
//	                    of entries, also at intervals; FROM lists uids
//	sync PATH           syncs the file system of a directory
//	count PATH          prints the size of a directory's content
//	user-map PATH       prints the uid map, which is at PATH
//	fingerprint PATH    prints the number of entries at intervals, and last the
//	                    fingerprint of a home (archive.Fingerprint)
//	install-agent PATH DIGEST
//	                    puts the agent, which has the digest, into a directory
//	install-ide FROM TO DIGEST VSIX
//	                    copies the IDE's tree, unless it is complete there with the
//	                    digest, and adds the extensions of a folder if one is given
func HelperMain(args []string) int { return helperMain(args, os.Stdout, os.Stderr) }

func helperMain(args []string, stdout, stderr io.Writer) int {
	if err := runAsHelper(args, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func runAsHelper(args []string, stdout io.Writer) error {
	if len(args) == 3 && args[0] == helper.CmdInstallAgent {
		return tools.InstallAgent(args[1], args[2])
	}
	if len(args) == 5 && args[0] == helper.CmdInstallIDE {
		return tools.InstallIDE(args[1], args[2], args[3], args[4])
	}
	if len(args) == 4 && args[0] == helper.CmdOwnHome {
		return home.RunOwn(stdout, args[1], args[2], args[3])
	}
	if len(args) != 2 {
		return errors.New("usage: host-helper wall SPEC | remove-wall TABLE | remove-home PATH | empty-home PATH | is-empty PATH | own-home UID FROM PATH | sync PATH | count PATH | user-map PATH | fingerprint PATH | install-agent PATH DIGEST | install-ide FROM TO DIGEST VSIX")
	}
	if args[0] == helper.CmdWall {
		spec, err := wall.ParseSpec(args[1])
		if err != nil {
			return err
		}
		return wall.Apply(spec)
	}
	if args[0] == helper.CmdRemoveWall {
		if !wallTable.MatchString(args[1]) {
			return fmt.Errorf("remove-wall: %q is not a table of codehub", args[1])
		}
		return wall.Remove(args[1])
	}
	path := args[1]
	if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
		return fmt.Errorf("%s: %q is not a folder's absolute path", args[0], path)
	}
	return home.RunCommand(args[0], path, stdout)
}
