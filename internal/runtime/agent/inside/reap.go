package inside

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Processes starts commands and waits for them, in a process that also reaps: as the
// first process of a container, the agent is the parent of all orphans. A reaper that
// waits for any child would take the exit status of a command from its owner, so it
// takes only those of children that nothing here started.
//
// The zero value is ready, and works without Reap, too.
type Processes struct {
	mu    sync.Mutex
	owned map[int]*exec.Cmd // started and not waited for yet, by process ID
	wake  chan struct{}     // asks Reap to look again; nil without Reap
}

// Start is like cmd.Start. The reaper knows the process before it can end.
func (p *Processes) Start(cmd *exec.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	if p.owned == nil {
		p.owned = map[int]*exec.Cmd{}
	}
	p.owned[cmd.Process.Pid] = cmd
	return nil
}

// Wait is like cmd.Wait, for a command that Start started.
func (p *Processes) Wait(cmd *exec.Cmd) error {
	awaitEnd(cmd.Process.Pid)
	err := cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	// The kernel may have given the ID to another command already.
	if p.owned[cmd.Process.Pid] == cmd {
		delete(p.owned, cmd.Process.Pid)
	}
	select {
	case p.wake <- struct{}{}: // an orphan may have got the ID in between
	default:
	}
	return err
}

// awaitEnd waits for the end of a child without a thread: a wait of the kernel's takes one for
// each command, and the threads of a workspace are limited. It returns at once where the
// kernel cannot do that, before Linux 5.3.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return
	}
	file := os.NewFile(uintptr(fd), "process")
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		ended, err := endedChild(unix.P_PID, pid)
		return err != nil || ended != 0
	})
}

// Reap takes the exit statuses of orphans until stop is closed.
func (p *Processes) Reap(stop <-chan struct{}) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	wake := make(chan struct{}, 1)
	p.mu.Lock()
	p.wake = wake
	p.mu.Unlock()
	for {
		p.reap()
		select {
		case <-stop:
			return
		case <-ended:
		case <-wake:
		}
	}
}

// reap takes the statuses of all orphans that have ended.
func (p *Processes) reap() {
	for {
		pid, err := endedChild(unix.P_ALL, 0)
		if err != nil || pid == 0 {
			return
		}
		if p.take(pid) {
			continue
		}
		// The kernel names the same child again and again until its owner has
		// waited for it, which may be long after: the children behind it are found
		// by name.
		for _, pid := range children() {
			p.take(pid)
		}
		return
	}
}

// take waits for an orphan if it has ended. It reports whether the child was one.
func (p *Processes) take(pid int) bool {
	p.mu.Lock() // so that no command gets the ID before the call below
	defer p.mu.Unlock()
	if p.owned[pid] != nil {
		return false
	}
	for {
		_, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		if !errors.Is(err, syscall.EINTR) {
			return true
		}
	}
}

// endedChild returns a child that has ended and was not waited for, of those that the type and
// the ID of waitid name; 0: none.
func endedChild(idType, id int) (int, error) {
	// The fields of the C type siginfo_t for SIGCHLD. The kernel aligns its union as
	// a pointer.
	var info struct {
		_     [3]int32
		union struct {
			_   [0]uintptr
			pid int32
		}
		_ [112]byte
	}
	for {
		err := unix.Waitid(idType, id, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return int(info.union.pid), err
		}
	}
}

// children lists the children of this process, of all its threads.
func children() []int {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var out []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}
