package failpoint

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stopsSelf makes the test binary the process that TestPause starts.
const stopsSelf = "CODEHUB_TEST_PAUSE"

func TestMain(m *testing.M) {
	if os.Getenv(stopsSelf) != "" {
		pauseElsewhere()
		return
	}
	os.Exit(m.Run())
}

// pauseElsewhere pauses this process from another thread than the first, which receives
// signals to the process, and prints the length of the pause.
func pauseElsewhere() {
	runtime.LockOSThread()
	took := make(chan time.Duration)
	go func() {
		began := time.Now()
		if err := pause(); err != nil {
			panic(err)
		}
		took <- time.Since(began)
	}()
	fmt.Println((<-took).Nanoseconds())
}

// The caller of pause does nothing before the process continues.
func TestPause(t *testing.T) {
	t.Parallel()
	for range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), stopsSelf+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("the process did not stop: %v, %v", status, err)
		}
		const stopped = 20 * time.Millisecond
		time.Sleep(stopped)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		var ns int64
		if _, err := fmt.Fscan(bufio.NewReader(out), &ns); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if d := time.Duration(ns); d < stopped {
			t.Fatalf("the caller continued after %s, before the process did", d)
		}
	}
}
