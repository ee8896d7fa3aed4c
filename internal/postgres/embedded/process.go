package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// process is a postmaster that this server has started.
type process struct {
	pid   int
	child *os.Process
	ended chan struct{} // closed once it has ended
}

func newProcess(cmd *exec.Cmd) *process {
	p := &process{pid: cmd.Process.Pid, child: cmd.Process, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	return p
}

// wait returns nil once the process has ended, or the context's error.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// running reports whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends sig; to a process that has ended it does nothing.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.child.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}
