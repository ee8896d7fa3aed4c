package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/tools"
	"codehub/internal/runtime/docker/wall"
)

// HelperCommand is the subcommand that calls HelperMain.
const HelperCommand = helper.Command

// wallTable matches the names of the installations' nftables tables; see namesOf.
var wallTable = regexp.MustCompile(`^codehub-[0-9a-f]{8}$`)

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
//	space PATH          prints the disk space of a directory's files
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
		return ownHome(stdout, args[1], args[2], args[3])
	}
	if len(args) != 2 {
		return errors.New("usage: host-helper wall SPEC | remove-wall TABLE | remove-home PATH | empty-home PATH | is-empty PATH | own-home UID FROM PATH | sync PATH | count PATH | space PATH | user-map PATH | fingerprint PATH | install-agent PATH DIGEST | install-ide FROM TO DIGEST VSIX")
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
	ctx := context.Background()
	removed := func(n int64) { fmt.Fprintf(stdout, "%s%d\n", removedPrefix, n) }
	switch args[0] {
	case helper.CmdRemoveHome:
		return removeTree(ctx, path, removed)
	case helper.CmdEmptyHome:
		return emptyHomeAt(ctx, path, removed)
	case helper.CmdIsEmpty:
		entries, err := os.ReadDir(path)
		if err == nil && len(entries) > 0 {
			err = errors.New(notEmpty)
		}
		return err
	case helper.CmdSync:
		dir, err := os.Open(path)
		if err != nil {
			return err
		}
		defer dir.Close()
		return syncFileSystem(dir)
	case helper.CmdCount:
		size, err := measureTree(ctx, path)
		if err == nil {
			fmt.Fprintln(stdout, size)
		}
		return err
	case helper.CmdUserMap:
		return printUserMap(stdout, path)
	case helper.CmdFingerprint:
		return printFingerprint(stdout, path)
	}
	return fmt.Errorf("host-helper has no command %q", args[0])
}

// notEmpty is the error of is-empty.
const notEmpty = "the folder is not empty"

func printFingerprint(out io.Writer, home string) error {
	last := time.Now()
	m, err := archive.Measure(context.Background(), home, func(m archive.Measurement) error {
		if m.Entries%1024 != 0 || time.Since(last) < helper.PrintEvery {
			return nil
		}
		last = time.Now()
		_, err := fmt.Fprintln(out, m.Entries)
		return err
	})
	if errors.Is(err, archive.ErrChanged) {
		m.Fingerprint, err = changing(), nil
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, m.Fingerprint)
	return err
}

// ownHome changes the owner of a home; from lists the uids whose files are changed.
func ownHome(out io.Writer, to, from, path string) error {
	change, err := archive.ParseOwnerChange(to, from)
	if err != nil {
		return err
	}
	var entries int64
	at := pace(func(n int64) { fmt.Fprintln(out, n) })
	change.Progress = func(n int64) { entries = n; at(n) }
	if err := archive.ChangeOwner(context.Background(), path, change); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, entries)
	return err
}

// pace returns a function that calls f at intervals of helper.PrintEvery, at most.
func pace(f func(n int64)) func(n int64) {
	last := time.Now()
	return func(n int64) {
		if now := time.Now(); now.Sub(last) >= helper.PrintEvery {
			last = now
			f(n)
		}
	}
}
