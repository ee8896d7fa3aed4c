package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// claimWait bounds how long a start waits for exiting processes of an earlier start.
const claimWait = time.Minute

// claim returns the postmaster that already serves the cluster, or the held lock of the
// cluster, with which the caller may start one.
func (l *layout) claim(ctx context.Context, socketFolder string) (*process, *os.File, error) {
	lock, err := l.root.OpenFile(clusterLock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the database's lock: %w", err)
	}
	if l.acc.switched() { // a later server may run as postgres's user itself
		if err := lock.Chown(l.acc.postgres.uid, l.acc.postgres.gid); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("open the database's lock: %w", err), lock.Close())
		}
	}
	p, err := l.claimWith(ctx, lock, socketFolder)
	if p != nil || err != nil {
		_ = lock.Close()
		return p, nil, err
	}
	return nil, lock, nil
}

func (l *layout) claimWith(ctx context.Context, lock *os.File, socketFolder string) (*process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, claimWait, fmt.Errorf(
		"processes of an earlier PostgreSQL still use %s, and none is responding: "+
			"find them with `fuser -v %s` and end them", l.base, l.path(clusterLock)))
	defer cancel()
	for {
		free, err := tryFlock(lock)
		if err != nil {
			return nil, fmt.Errorf("lock the database: %w", err)
		}
		// Check even if the lock is free: postgres may have been started by hand.
		p, err := listener(filepath.Join(socketFolder, socketName))
		if p != nil || err != nil {
			return p, err
		}
		if free {
			return nil, l.clearStale()
		}
		// The holder does not listen: the last processes of a killed postmaster, or
		// the initdb of a killed server.
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// listener returns the process that listens on the socket, nil if none does. A
// socket in the cluster's folder has only its postmaster behind it.
func listener(socket string) (*process, error) {
	pid, err := listenerPID(socket)
	if pid == 0 || err != nil {
		return nil, err
	}
	p, err := watch(pid, nil)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// It may have ended before the watch began, and another process may have its id.
	again, err := listenerPID(socket)
	if err != nil || again != pid {
		return nil, err
	}
	return p, nil
}

func listenerPID(socket string) (int, error) {
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, err := dialer.Dial("unix", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for a running PostgreSQL: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("look for a running PostgreSQL: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("look for a running PostgreSQL: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("look for a running PostgreSQL: %w", credErr)
	}
	if cred.Pid == 0 {
		return 0, fmt.Errorf("the database behind %s is served from another container: stop that one first", socket)
	}
	return int(cred.Pid), nil
}

// clearStale removes the files of a postmaster that has ended, which would prevent the
// next start: postgres mistakes any process of its user with the old id for its
// predecessor. The caller holds the cluster's lock and has checked that no process
// listens.
func (l *layout) clearStale() error {
	for _, name := range []string{socketName, socketName + ".lock"} {
		if err := l.root.Remove(runName + "/" + name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a stale socket: %w", err)
		}
	}
	const pidFile = dataName + "/postmaster.pid"
	content, err := l.read(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err == nil && pid > 0 {
		inUse, known := l.runsInCluster(pid)
		if inUse {
			return fmt.Errorf("the database in %s is served by process %d, which codehub did not start and cannot reach: stop it first",
				l.path(dataName), pid)
		}
		if !known {
			return nil // postgres checks it better than codehub can
		}
	}
	if err := l.root.Remove(pidFile); err != nil {
		return fmt.Errorf("remove a stale postmaster.pid: %w", err)
	}
	return nil
}

// runsInCluster reports whether the working folder of the process is the cluster, as for
// every process of PostgreSQL. known is false if postgres cannot mistake the process
// for its own, or if this server may not read the folder.
func (l *layout) runsInCluster(pid int) (inUse, known bool) {
	proc := "/proc/" + strconv.Itoa(pid)
	if dead(proc) {
		return false, true // its parent has not reaped it yet, and may never do so, if it is an init without reaping
	}
	fi, err := os.Stat(proc)
	if err != nil {
		return false, false
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != l.acc.postgres.uid {
		return false, false
	}
	cwd, err := os.Stat(proc + "/cwd")
	if err == nil {
		data, err := l.root.Stat(dataName)
		return err == nil && os.SameFile(cwd, data), true
	}
	// Root without CAP_SYS_PTRACE, as in most containers, may not see it.
	comm, err := os.ReadFile(proc + "/comm")
	return false, err == nil && strings.TrimSpace(string(comm)) != "postgres"
}

// dead reports whether the process is a zombie, or was killed and has closed its files,
// including the lock. postgres treats such a process as alive.
func dead(proc string) bool {
	stat, err := os.ReadFile(proc + "/stat")
	return err == nil && statDead(stat)
}

func statDead(stat []byte) bool {
	// pid (name) state ppid pgrp session tty tpgid flags …; the name may contain any
	// characters.
	fields := strings.Fields(string(stat[max(0, bytes.LastIndexByte(stat, ')')):]))
	if len(fields) < 8 {
		return false
	}
	const exiting = 0x4 // PF_EXITING
	flags, err := strconv.ParseUint(fields[7], 10, 64)
	return fields[1] == "Z" || fields[1] == "X" || err == nil && flags&exiting != 0
}

// pause waits for d, or returns the cause of the context's end.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
