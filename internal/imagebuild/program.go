package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// run runs the program in a process group of its own and passes the lines of its output on,
// one at a time. When ctx ends, the group gets SIGTERM, and after grace SIGKILL. When it
// returns, no process of the group is left.
func run(ctx context.Context, grace time.Duration, program string, args []string, stdout, stderr func(line string)) error {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	group := -cmd.Process.Pid
	var one sync.Mutex
	var reading sync.WaitGroup
	locked := func(f func(string)) func(string) {
		return func(line string) {
			one.Lock()
			defer one.Unlock()
			f(line)
		}
	}
	reading.Go(func() { eachLine(out, locked(stdout)) })
	reading.Go(func() { eachLine(errs, locked(stderr)) })

	ended := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		_ = syscall.Kill(group, syscall.SIGTERM)
		late := time.NewTimer(grace)
		defer late.Stop()
		select {
		case <-ended:
		case <-late.C:
			_ = syscall.Kill(group, syscall.SIGKILL)
		}
	})
	awaitExit(cmd.Process.Pid)
	close(ended)
	killing.Wait()
	// What the program has left behind would keep the pipes open. The program is not reaped
	// yet, so that the group's number belongs to no other.
	_ = syscall.Kill(group, syscall.SIGKILL)
	reading.Wait()
	err = cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// awaitExit returns once the child has exited, and leaves it to be reaped.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// list asks the program for its images.
func list(ctx context.Context, program string) ([]Image, error) {
	var out, errs strings.Builder
	err := run(ctx, 0, program, []string{"list"}, func(line string) { out.WriteString(line + "\n") }, func(line string) { errs.WriteString(line + "\n") })
	if err != nil {
		return nil, fmt.Errorf("%w: %.200s", err, strings.TrimSpace(errs.String()))
	}
	return parseList(out.String())
}
