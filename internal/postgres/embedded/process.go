package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a running postmaster, a child of this server or of an earlier one. The
// pidfd prevents signals to, and waits for, another process that reuses its id. It is
// closed when the value is garbage collected.
type process struct {
	pid    int
	handle *os.File
	child  *exec.Cmd // nil if adopted
	reap   sync.Once
}

// watch opens the pidfd of a process. If the process is not our child, the caller must
// check afterwards that the id still belongs to it.
func watch(pid int, child *exec.Cmd) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
	}
	return &process{pid: pid, handle: os.NewFile(uintptr(fd), "pidfd"), child: child}, nil
}

// wait returns nil once the process has ended, or the context's error.
func (p *process) wait(ctx context.Context) error {
	// Each waiter has its own descriptor, since a deadline applies to all readers of
	// one. The runtime's poller watches it, without a thread or polling.
	var fd int
	var err error
	if cErr := control(p.handle, func(h uintptr) {
		if fd, err = unix.FcntlInt(h, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}); cErr != nil {
		return cErr
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	err = conn.Read(ended)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	p.collect()
	return nil
}

// running reports whether the process has not ended yet.
func (p *process) running() bool {
	over := false
	if err := control(p.handle, func(fd uintptr) { over = ended(fd) }); err != nil {
		return false
	}
	if over {
		p.collect()
	}
	return !over
}

// signal sends sig; to a process that has ended it does nothing.
func (p *process) signal(sig syscall.Signal) error {
	var err error
	if cErr := control(p.handle, func(fd uintptr) {
		err = unix.PidfdSendSignal(int(fd), sig, nil, 0)
	}); cErr != nil {
		return cErr
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// collect reaps a child that has ended.
func (p *process) collect() {
	if p.child != nil {
		p.reap.Do(func() { _ = p.child.Wait() })
	}
}

func ended(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

func control(f *os.File, fn func(fd uintptr)) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Control(fn)
}
