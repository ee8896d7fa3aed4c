package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"codehub/internal/cli/terminal"
	"codehub/internal/runtime/agent/busy"
)

// busyCmd runs in a workspace.
type busyCmd struct {
	Reason  string   `short:"m" help:"Text for the workspace's page (default: the command)."`
	Command []string `arg:"" passthrough:"" help:"Command and its arguments, after --."`
}

// Help describes the command beyond its flags.
func (busyCmd) Help() string {
	return "Use it inside a workspace. It runs the command and keeps the workspace awake until the command ends, for at most the server's limit (CODEHUB_BUSY_MAX, 24 h by default). " +
		"The exit status is that of the command. If the workspace cannot be kept awake, a warning is printed and the command runs anyway."
}

func (cmd busyCmd) Run(ctx context.Context, k *kong.Context) error {
	args := cmd.Command
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return errors.New("give a command after --")
	}
	reason := cmd.Reason
	if reason == "" {
		reason = strings.Join(args, " ")
	}
	// The terminal sends its signals to the command too; other signals are forwarded.
	ctx = context.WithoutCancel(ctx)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	release, err := busy.Hold(ctx, busySocket(), reason)
	if err != nil {
		fmt.Fprintln(k.Stderr, "codehub: the workspace is not kept awake:", err)
		release = func() {}
	}
	defer release()
	run := exec.Command(args[0], args[1:]...)
	run.Stdin, run.Stdout, run.Stderr = os.Stdin, k.Stdout, k.Stderr
	if err := run.Start(); err != nil {
		return terminal.Exit(exitNotStarted, err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				if s != os.Interrupt && s != syscall.SIGQUIT {
					_ = run.Process.Signal(s)
				}
			case <-ended:
				return
			}
		}
	}()
	err = run.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	code := exit.ExitCode()
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return terminal.Exit(code, nil)
}

// busySocket is the path of the agent's socket. Tests set another one.
func busySocket() string {
	if s := os.Getenv("CODEHUB_BUSY_SOCKET"); s != "" {
		return s
	}
	return busy.Socket
}

// stayInside keeps the workspace in which it runs awake until ctx ends.
func stayInside(ctx context.Context, k *kong.Context) error {
	release, err := busy.Hold(ctx, busySocket(), "codehub stay")
	if errors.Is(err, busy.ErrNoAgent) {
		return errors.New("give the name of a workspace, or run codehub stay inside one")
	}
	if err != nil {
		return err
	}
	defer release()
	fmt.Fprintln(k.Stderr, "The workspace stays awake until you press Ctrl-C, for at most the server's limit (CODEHUB_BUSY_MAX, 24 h by default).")
	<-ctx.Done()
	return nil
}
