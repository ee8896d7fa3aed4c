package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	backupsName = "backups"
	// partialDump is a dump that is being written, by a process that has locked it.
	partialDump = "incomplete.dump"
	// keepDumps is how many dumps Backup keeps.
	keepDumps = 3
	// dumpTime begins the names of dumps, so that they sort by age.
	dumpTime = "20060102T150405Z"
)

// Backup dumps the database that runs on the data folder, in the custom format of pg_dump, into
// the data folder's folder backups, and removes all but the three latest dumps. before is what
// the dump precedes, such as a version, and is in its name. The error says what to do.
func Backup(ctx context.Context, cfg Config, before string) (path string, err error) {
	acc, err := chooseAccounts(cfg.User)
	if err != nil {
		return "", err
	}
	have, err := installations(ctx, cfg.BinDirs)
	if err != nil {
		return "", err
	}
	lay, err := openLayout(cfg.Dir, acc)
	if err != nil {
		return "", err
	}
	defer lay.root.Close()
	made, err := lay.clusterVersion()
	if err != nil {
		return "", err
	}
	inst, ok := ofMajor(have, made)
	if !ok {
		return "", lay.versionError(made, have)
	}
	address, err := Find(ctx, cfg.Dir)
	if err != nil {
		return "", err
	}
	return backup(ctx, inst, cfg, address, before)
}

func backup(ctx context.Context, inst installation, cfg Config, address, before string) (path string, err error) {
	folder, err := filepath.Abs(filepath.Join(cfg.Dir, backupsName))
	if err != nil {
		return "", fmt.Errorf("find data folder: %w", err)
	}
	name := time.Now().UTC().Format(dumpTime) + "-before-" + fileName(before) + ".dump"
	if err := writeDump(ctx, inst, folder, name, address, cfg.Progress); err != nil {
		return "", fmt.Errorf("dump the database to %s: %w\nFree space on the disk of %s, where older dumps can be removed, and try again", filepath.Join(folder, name), err, folder)
	}
	return filepath.Join(folder, name), errors.Join(syncDir(folder), pruneDumps(folder))
}

func writeDump(ctx context.Context, inst installation, folder, name, address string, progress func()) error {
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	program, err := inst.client(ctx, "pg_dump")
	if err != nil {
		return err
	}
	partial := filepath.Join(folder, partialDump)
	f, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	switch free, err := tryFlock(f); {
	case err != nil:
		return fmt.Errorf("lock %s: %w", partial, err)
	case !free:
		return fmt.Errorf("another process is writing %s", partial)
	}
	err = f.Truncate(0) // what a killed process has left
	if err == nil {
		err = dump(ctx, program, address, f, progress)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(partial, filepath.Join(folder, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	return nil
}

// dump writes the database to a file by pg_dump, through a pipe: pg_dump does not notice that the
// last kilobytes did not fit on the disk.
func dump(ctx context.Context, program, address string, to *os.File, progress func()) error {
	cmd := client(ctx, program, "--format=custom", "--dbname="+address)
	w := &writes{to: to, progress: progress}
	cmd.Stdout = w
	if err := runClient(cmd); w.err == nil {
		return err
	}
	return w.err
}

// writes keeps the first error of a file's writes.
type writes struct {
	to       *os.File
	progress func() // nil: not reported
	err      error
}

func (w *writes) Write(b []byte) (n int, err error) {
	n, w.err = w.to.Write(b)
	if w.err == nil && w.progress != nil {
		w.progress()
	}
	return n, w.err
}

// client is a command that connects to the database as the server's OS user, without the
// server's environment.
func client(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"--no-password"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C"}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func runClient(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w%s", cmd.Path, err, errorLines(out.String()))
	}
	return nil
}

// client finds a client program of this release: distributions may put it elsewhere. One of a
// newer release works as well.
func (i installation) client(ctx context.Context, program string) (string, error) {
	paths := []string{i.path(program)}
	if path, err := exec.LookPath(program); err == nil {
		paths = append(paths, path)
	}
	for _, path := range paths {
		if major, err := majorVersion(ctx, path); err == nil && major >= i.major {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s of PostgreSQL %d is not installed (Debian, Ubuntu: apt-get install postgresql-client-%d; Fedora: dnf install postgresql; Alpine: apk add postgresql%d-client)",
		program, i.major, i.major, i.major)
}

// pruneDumps removes all but the latest dumps that backup has written.
func pruneDumps(folder string) error {
	dumps, err := filepath.Glob(filepath.Join(folder, "*Z-before-*.dump")) // sorted
	if err != nil {
		return err
	}
	for _, path := range dumps[:max(0, len(dumps)-keepDumps)] {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove an old dump: %w", err)
		}
	}
	return nil
}

// fileName replaces characters that do not belong in a file's name.
func fileName(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(".-_", r) {
			return r
		}
		return '_'
	}, s)
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
