package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lastLinesWithin bounds the wait for a process that has left the group and keeps the pipe open.
const lastLinesWithin = 2 * time.Second

// run runs the program in a process group of its own and passes on the lines that it prints.
// When ctx ends, the group gets SIGTERM, and after grace SIGKILL. When it returns, no process of
// the group is left.
func run(ctx context.Context, grace time.Duration, program string, args, env []string, line func(string)) error {
	// One pipe for both, so that the lines stay in order.
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = in, in, &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		return err
	}
	group := -cmd.Process.Pid
	var reading sync.WaitGroup
	reading.Go(func() { eachLine(out, line) })

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
	// What the program has left behind would keep the pipe open. The program is not reaped yet,
	// so that the group's number belongs to no other.
	_ = syscall.Kill(group, syscall.SIGKILL)
	_ = out.SetReadDeadline(time.Now().Add(lastLinesWithin))
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
	cmd := exec.CommandContext(ctx, program, "list")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) && len(failed.Stderr) > 0 {
		err = fmt.Errorf("%w: %.200s", err, strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		return nil, err
	}
	return parseList(string(out))
}
