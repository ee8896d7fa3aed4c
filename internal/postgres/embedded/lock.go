package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lockName = "codehub.lock"

// Lock is the exclusive use of a data folder. The kernel releases it when its process
// ends in any way; child processes do not inherit it.
type Lock struct {
	file *os.File
}

// LockedError is the error of LockDir if another server uses the data folder.
type LockedError struct {
	Dir string
	// PID is the holder's process id in its own PID namespace, 0 if not known.
	PID int
	// Host is the holder's host name if it differs from ours, as for two containers
	// that share a folder.
	Host string
}

func (e *LockedError) Error() string {
	var who string
	if e.PID != 0 {
		who = fmt.Sprintf(" (pid %d)", e.PID)
		if e.Host != "" {
			who = fmt.Sprintf(" (pid %d on %s)", e.PID, e.Host)
		}
	}
	return fmt.Sprintf("data folder %s is in use by another codehub server%s: stop that one first, "+
		"or give this one a folder of its own with CODEHUB_DATA_DIR", e.Dir, who)
}

// LockDir locks the data folder for this process, and creates a missing folder (0700).
// If another process holds the lock, the error is a *LockedError.
func LockDir(dir string) (*Lock, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	ok, err := tryFlock(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock data folder %s: %w", dir, err)
	}
	if !ok {
		defer f.Close()
		return nil, lockedBy(dir, f)
	}
	host, _ := os.Hostname()
	if err := overwrite(f, fmt.Sprintf("%d %s\n", os.Getpid(), host)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock data folder %s: %w", dir, err)
	}
	return &Lock{file: f}, nil
}

// Release releases the data folder. It may be called more than once.
func (l *Lock) Release() error {
	// The file stays: if it were removed, a server that waits for it and one that
	// creates it again could both hold a lock.
	err := l.file.Truncate(0)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	// A process that is being started has a copy of the file until its program runs, which
	// would hold the lock that long.
	unlocked := control(l.file, func(fd uintptr) { _ = unix.Flock(int(fd), unix.LOCK_UN) })
	return errors.Join(err, unlocked, l.file.Close())
}

func lockedBy(dir string, f *os.File) *LockedError {
	e := &LockedError{Dir: dir}
	buf := make([]byte, 512)
	n, _ := f.ReadAt(buf, 0)
	fields := strings.Fields(string(bytes.TrimSpace(buf[:n])))
	if len(fields) > 0 {
		e.PID, _ = strconv.Atoi(fields[0])
	}
	if host, _ := os.Hostname(); len(fields) > 1 && fields[1] != host {
		e.Host = fields[1]
	}
	return e
}

func overwrite(f *os.File, s string) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// tryFlock locks the open file; false if another process holds the lock.
func tryFlock(f *os.File) (bool, error) {
	var lockErr error
	if err := control(f, func(fd uintptr) {
		lockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
	}); err != nil {
		return false, err
	}
	if errors.Is(lockErr, unix.EWOULDBLOCK) {
		return false, nil
	}
	return lockErr == nil, lockErr
}

func control(f *os.File, fn func(fd uintptr)) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Control(fn)
}
