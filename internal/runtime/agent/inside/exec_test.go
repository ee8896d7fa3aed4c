package inside

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/harness"
)

// terminal opens a terminal. A process in the background holds it open, as it were.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, slave, err := openTerminal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		master.Close()
		slave.Close()
	})
	return master, slave
}

// What a command printed on its terminal is read after its end, although the output's
// reader was not ready for longer than lastOutput.
func TestTerminalOutputWaitsForSlowReader(t *testing.T) {
	t.Parallel()
	master, slave := terminal(t)
	printed := strings.Repeat("x", 2<<10)
	if _, err := io.WriteString(slave, printed); err != nil {
		t.Fatal(err)
	}
	r := &terminalReader{from: master}
	r.exited()
	// The reader is slow: the wait that began with the command's end is over before it reads.
	if err := master.SetReadDeadline(time.Now().Add(-lastOutput)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if string(got) != printed || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes were read, not %d: %v", len(got), len(printed), err)
	}
	// One that prints for ever is left alone in the end.
	r.end = time.Now()
	if _, err := io.WriteString(slave, printed); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); len(got) > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes were read after the end: %v", len(got), err)
	}
}

// heldUp is a file whose read goes on when the command ends, in a process that is held up for
// longer than lastOutput then.
type heldUp struct {
	*os.File
	before func() // the read fails; nil: nothing
}

func (f *heldUp) Read(p []byte) (int, error) {
	if before := f.before; before != nil {
		f.before = nil
		before()
		return 0, os.ErrDeadlineExceeded
	}
	return f.File.Read(p)
}

// What a command printed on its terminal is read also if the process was held up until the wait
// for it was over.
func TestTerminalOutputOutlastsDelay(t *testing.T) {
	t.Parallel()
	master, slave := terminal(t)
	const printed = "last words"
	r := &terminalReader{}
	r.from = &heldUp{File: master, before: func() {
		if _, err := io.WriteString(slave, printed); err != nil {
			t.Error(err)
		}
		raw, err := master.SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		err = raw.Control(func(fd uintptr) { // the kernel passes it on a little later
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(harness.Patience.Milliseconds())); n != 1 {
				t.Errorf("the terminal has %d events: %v", n, err)
			}
		})
		if err != nil {
			t.Error(err)
		}
		r.exited()
	}}
	if got, err := io.ReadAll(r); string(got) != printed || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
}
