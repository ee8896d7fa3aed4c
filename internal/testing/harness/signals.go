package harness

import (
	"os"
	"os/signal"
	"syscall"
)

// HeedSignals lets the commands that tests start receive the signals of a terminal. A process
// that was started by nohup, or in the background by a shell, ignores some of them, and its
// commands would as well. TestMain calls it.
func HeedSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // a signal that is caught is not ignored by commands
		}
	}
}
