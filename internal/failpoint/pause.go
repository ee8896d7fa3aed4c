package failpoint

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// pause stops this process until it receives SIGCONT. The signal is sent to the calling
// thread: a signal to the process may go to another thread, and the caller would
// continue until that one has received it.
func pause() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}
