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

// claim returns the held lock of the cluster, with which the caller may start a postmaster.
// It stops the postmaster that a killed server has left.
func (l *layout) claim(ctx context.Context, socketFolder string) (*os.File, error) {
	lock, err := l.root.OpenFile(clusterLock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the database's lock: %w", err)
	}
	if l.acc.switched() { // a later server may run as postgres's user itself
		err = lock.Chown(l.acc.postgres.uid, l.acc.postgres.gid)
	}
	if err == nil {
		err = l.claimWith(ctx, lock, filepath.Join(socketFolder, socketName))
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func (l *layout) claimWith(ctx context.Context, lock *os.File, socket string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, claimWait, fmt.Errorf(
		"processes of an earlier PostgreSQL still use %s: find them with `fuser -v %s` and end them", l.base, l.path(clusterLock)))
	defer cancel()
	for {
		free, err := tryFlock(lock)
		if err != nil {
			return fmt.Errorf("lock the database: %w", err)
		}
		// Check even if the lock is free: postgres may have been started by hand.
		pid, err := listenerPID(socket)
		switch {
		case err != nil:
			return err
		case free && pid != 0:
			return l.startedByHand(pid)
		case free:
			return l.clearStale()
		case pid != 0:
			err = stopListener(pid, socket)
		}
		// Without a listener, the holder is the last processes of a killed postmaster, or
		// the initdb of a killed server.
		if err == nil {
			err = pause(ctx, 20*time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
}

func (l *layout) startedByHand(pid int) error {
	return fmt.Errorf("the database in %s is served by process %d, which codehub did not start: stop it first", l.path(dataName), pid)
}

// stopListener asks the postmaster that listens on the socket to shut down without waiting
// for clients. The handle of a process prevents a signal to another one with its id.
func stopListener(pid int, socket string) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	defer p.Release()
	if again, err := listenerPID(socket); err != nil || again != pid {
		return err
	}
	if err := p.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	return nil
}

// listenerPID returns the process that listens on the socket, 0 if none does. A
// socket in the cluster's folder has only its postmaster behind it.
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
	const pidFile = dataName + "/postmaster.pid"
	stale := []string{runName + "/" + socketName, runName + "/" + socketName + ".lock", pidFile}
	content, err := l.read(pidFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	first, _, _ := strings.Cut(string(content), "\n")
	if pid, err := strconv.Atoi(strings.TrimSpace(first)); err == nil && pid > 0 {
		inUse, known := l.runsInCluster(pid)
		if inUse {
			return l.startedByHand(pid)
		}
		if !known {
			stale = stale[:2] // postgres checks it better than codehub can
		}
	}
	for _, name := range stale {
		if err := l.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a stale file of postgres: %w", err)
		}
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
