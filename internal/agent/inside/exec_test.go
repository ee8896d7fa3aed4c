package inside

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// What a command printed on its terminal is read after its end, although the output's
// reader was not ready for longer than lastOutput.
func TestTerminalOutputWaitsForSlowReader(t *testing.T) {
	t.Parallel()
	master, slave, err := openTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close() // a process in the background holds it open
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
