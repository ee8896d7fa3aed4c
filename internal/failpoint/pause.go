package failpoint

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// pause stops this process until it receives SIGCONT. The signal goes to the
// calling thread: sent to the process it may go to another thread, and the caller runs
// on until that one has received it.
func pause() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}
