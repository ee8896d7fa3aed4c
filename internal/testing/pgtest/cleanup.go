package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// caretaker waits for the end of its standard input, which is the end of the test
// process, then ends the server in the folder $1 and removes the folder. A server that
// is just starting has half a second to write postmaster.pid.
const caretaker = `
trap '' HUP INT TERM
read -r _
sleep 0.5
pidfile=$1/postgres/data/postmaster.pid
for _ in 1 2 3 4 5 6 7 8 9 10; do
	[ -e "$pidfile" ] || break
	read -r pid <"$pidfile" && kill -QUIT "$pid"
	sleep 0.2
done
for _ in 1 2 3 4 5 6 7 8 9 10; do
	rm -rf -- "$1" && exit
	sleep 0.2
done
`

// cleanUpAfter starts a process that cleans up when the test process ends. The test
// process cannot do that itself when it is killed or exceeds the time limit of go test.
func cleanUpAfter(dir string) error {
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return fmt.Errorf("watch for the end of the tests: %w", err)
	}
	// The kernel closes the write end when this process ends.
	end := os.NewFile(uintptr(pipe[0]), "end of tests")
	defer end.Close()
	cmd := exec.Command("/bin/sh", "-c", caretaker, "sh", dir)
	cmd.Stdin = end
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = syscall.Close(pipe[1])
		return fmt.Errorf("watch for the end of the tests: %w", err)
	}
	return cmd.Process.Release()
}
