// Package inside is the program in the Pods that work on homes, `codehub pod-helper`. It
// does what the server cannot do from outside of the cluster's nodes.
package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"codehub/internal/archive"
)

// Command is the subcommand of the codehub executable that runs Main.
const Command = "pod-helper"

// The commands of the helper. See Main.
const (
	Install     = "install"
	InstallSelf = "install-self"
	Seed        = "seed"
	Describe    = "describe"
	Fingerprint = "fingerprint"
	Own         = "own"
	Probe       = "probe"
	Get         = "get"
)

// Main runs `codehub pod-helper args…` and returns the exit code.
//
//	install FILE          copies the agent's executable to the file
//	install-self FILE     copies this executable to the file
//	describe              prints what the Pod sees of its image, as JSON
//	seed FROM HOME        replaces the content of a home by that of a folder, which may be
//	                      missing, and describes the image
//	fingerprint HOME      prints the number of entries at intervals, and last the fingerprint
//	own UID FROM HOME     gives a home to a uid (archive.ChangeOwner), and prints the number of
//	                      entries; FROM lists uids
//	probe ADDRESS         serves at the address, and connects to others for Ask
//	get URL               requests an address for up to a minute, until its status is 200
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, args, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("pod-helper needs a command")
	}
	switch command, args := args[0], args[1:]; {
	case command == Install && len(args) == 1:
		return installAgent(args[0])
	case command == InstallSelf && len(args) == 1:
		return installSelf(args[0])
	case command == Seed && len(args) == 2:
		if err := seed(ctx, args[0], args[1], out); err != nil {
			return err
		}
		return describe("/", os.Environ(), out)
	case command == Describe && len(args) == 0:
		return describe("/", os.Environ(), out)
	case command == Fingerprint && len(args) == 1:
		return printFingerprint(ctx, args[0], out)
	case command == Own && len(args) == 3:
		return own(ctx, args[0], args[1], args[2], out)
	case command == Probe && len(args) == 1:
		return runProbe(ctx, args[0])
	case command == Get && len(args) == 1:
		return get(ctx, args[0], out)
	}
	return fmt.Errorf("pod-helper has no command %q with %d arguments", args[0], len(args)-1)
}

// printEvery is the interval between two lines of progress.
const printEvery = time.Second

// pace returns a function that prints a number at intervals of printEvery, at most.
func pace(out io.Writer) func(n int64) {
	last := time.Now()
	return func(n int64) {
		if now := time.Now(); now.Sub(last) >= printEvery {
			last = now
			fmt.Fprintln(out, n)
		}
	}
}

// printFingerprint prints the fingerprint of a home. A home that changes while it is read is
// an error.
func printFingerprint(ctx context.Context, home string, out io.Writer) error {
	at := pace(out)
	m, err := archive.Measure(ctx, home, func(m archive.Measurement) error {
		at(m.Entries)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the metadata of the home: %w", err)
	}
	_, err = fmt.Fprintln(out, m.Fingerprint)
	return err
}

func own(ctx context.Context, to, from, home string, out io.Writer) error {
	change, err := archive.ParseOwnerChange(to, from)
	if err != nil {
		return err
	}
	var entries int64
	at := pace(out)
	change.Progress = func(n int64) { entries = n; at(n) }
	if err := archive.ChangeOwner(ctx, home, change); err != nil {
		return fmt.Errorf("change the owner of the home: %w", err)
	}
	_, err = fmt.Fprintln(out, entries)
	return err
}
