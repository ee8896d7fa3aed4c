package home

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime/docker/helper"
)

// RunCommand is what the helper does with the path of a home, or of a part of it.
func RunCommand(command, path string, stdout io.Writer) error {
	ctx := context.Background()
	removed := func(n int64) { fmt.Fprintf(stdout, "%s%d\n", removedPrefix, n) }
	switch command {
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
	return fmt.Errorf("host-helper has no command %q", command)
}

// notEmpty is the error of is-empty.
const notEmpty = "the folder is not empty"

func printFingerprint(out io.Writer, home string) error {
	at := pace(func(n int64) { fmt.Fprintln(out, n) })
	m, err := archive.Measure(context.Background(), home, func(m archive.Measurement) error {
		at(m.Entries)
		return nil
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

// RunOwn changes the owner of a home; from lists the uids whose files are changed.
func RunOwn(out io.Writer, to, from, path string) error {
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

// printEvery is the interval between two lines of progress.
const printEvery = time.Second

// pace returns a function that calls f at intervals of printEvery, at most.
func pace(f func(n int64)) func(n int64) {
	last := time.Now()
	return func(n int64) {
		if now := time.Now(); now.Sub(last) >= printEvery {
			last = now
			f(n)
		}
	}
}
