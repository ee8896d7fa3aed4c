// Package script implements the storage jobs of the conformance suite: lines of
// words in the job's input. A real runtime runs them in a container with its tests'
// helper, the fake in the test's process.
package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Exit codes of a script that fails.
const (
	CodeIncomplete = 3 // the input did not end with an exit
	CodeFailed     = 4 // a line failed; the error is printed
	CodeGone       = 137
)

// Run executes the input on the home and the archive's directory, and returns the
// exit code.
//
//	say WORDS          prints them
//	complain WORDS     prints them to the standard error
//	count N            prints the numbers from 1 to N, one per line
//	long N             prints a line of N bytes
//	write PATH WORDS   writes a file in the home
//	read PATH          prints a file of the home
//	wipe               empties the home
//	touch PATH         sets a file's times
//	rename FROM TO     renames a file of the home
//	chmod PATH MODE    sets a file's mode, in octal
//	socket PATH        creates a socket
//	put NAME WORDS     writes a file in the archive's directory
//	wait NAME          waits for a file in the archive's directory
//	exit N             must be the last line
func Run(ctx context.Context, input []byte, home, object string, out, errOut io.Writer) int {
	lines := strings.Split(strings.TrimSuffix(string(input), "\n"), "\n")
	last := strings.Fields(lines[len(lines)-1])
	if len(last) != 2 || last[0] != "exit" || !bytes.HasSuffix(input, []byte("\n")) {
		fmt.Fprintln(errOut, "no orders")
		return CodeIncomplete
	}
	for _, line := range lines[:len(lines)-1] {
		if err := do(ctx, line, home, object, out, errOut); err != nil {
			if ctx.Err() != nil {
				return CodeGone
			}
			fmt.Fprintln(out, "failed:", err)
			return CodeFailed
		}
	}
	code, err := strconv.Atoi(last[1])
	if err != nil {
		return CodeFailed
	}
	return code
}

func do(ctx context.Context, line, home, object string, out, errOut io.Writer) error {
	verb, rest, _ := strings.Cut(line, " ")
	name, words, _ := strings.Cut(rest, " ")
	switch verb {
	case "say":
		_, err := fmt.Fprintln(out, rest)
		return err
	case "complain":
		_, err := fmt.Fprintln(errOut, rest)
		return err
	case "count", "long":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		return print(verb, n, out)
	case "write":
		return os.WriteFile(filepath.Join(home, name), []byte(words), 0o644)
	case "read":
		raw, err := os.ReadFile(filepath.Join(home, name))
		if err == nil {
			_, err = fmt.Fprintf(out, "%s\n", raw)
		}
		return err
	case "wipe":
		entries, err := os.ReadDir(home)
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(filepath.Join(home, e.Name())))
		}
		return err
	case "touch":
		now := time.Now()
		return os.Chtimes(filepath.Join(home, name), now, now)
	case "rename":
		return os.Rename(filepath.Join(home, name), filepath.Join(home, words))
	case "chmod":
		mode, err := strconv.ParseUint(words, 8, 32)
		if err != nil {
			return err
		}
		return os.Chmod(filepath.Join(home, name), fs.FileMode(mode))
	case "socket":
		return syscall.Mknod(filepath.Join(home, name), syscall.S_IFSOCK|0o600, 0)
	case "put":
		return os.WriteFile(filepath.Join(object, name), []byte(words), 0o644)
	case "wait":
		return await(ctx, filepath.Join(object, name))
	}
	return fmt.Errorf("unknown command %q", verb)
}

func print(verb string, n int, out io.Writer) error {
	if verb == "long" {
		_, err := fmt.Fprintln(out, strings.Repeat("x", n))
		return err
	}
	for i := range n {
		if _, err := fmt.Fprintln(out, i+1); err != nil {
			return err
		}
	}
	return nil
}

func await(ctx context.Context, path string) error {
	for {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}
