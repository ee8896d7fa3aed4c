//go:build unix

package cli

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// sigResized is the signal of a change of the terminal's size.
const sigResized = syscall.SIGWINCH

// notifyResized sends sigResized to signals until the returned function is called.
func notifyResized(signals chan<- os.Signal) func() {
	signal.Notify(signals, sigResized)
	return func() {} // signal.Stop of the other signals ends it
}

// opener is the command that opens an address in the user's browser.
func opener(ctx context.Context, url string) *exec.Cmd {
	if runtime.GOOS == "darwin" {
		return exec.CommandContext(ctx, "open", url)
	}
	return exec.CommandContext(ctx, "xdg-open", url)
}

// keepPrivate does nothing: the file has been created with the mode 0600.
func keepPrivate(string) error { return nil }

// quotedProgram quotes the path of a program for the shell that OpenSSH runs a ProxyCommand with.
func quotedProgram(path string) string {
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
