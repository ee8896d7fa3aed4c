package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"codehub/client"
)

// A log does not control the terminal on which it is printed, neither one's own nor another
// user's. A pipe gets it as it is.
func TestLogsDoNotControlTerminal(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	const (
		id      = "019a0000-0000-7000-8000-000000000001"
		printed = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\u202eend\n"
	)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/logs") {
			_, _ = io.WriteString(w, printed)
			return
		}
		fmt.Fprintf(w, `{"id": %[1]q, "workspace": {"id": %[1]q}}`, id)
	}))
	t.Cleanup(srv.Close)
	at := serverFlags{URL: srv.URL}
	type command interface {
		Run(ctx context.Context, k *kong.Context, c *client.Client) error
	}
	server, err := at.connect()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]command{"logs": logsCmd{serverFlags: at, Workspace: id}, "admin logs": adminLogsCmd{serverFlags: at, Workspace: id}} {
		for where, open := range map[string]func(*testing.T) (in, out *os.File){"terminal": openTerminal, "pipe": openPipe} {
			in, out := open(t)
			if err := c.Run(t.Context(), &kong.Context{Kong: &kong.Kong{Stdout: out, Stderr: io.Discard}}, server); err != nil {
				t.Fatal(err)
			}
			want := printed
			if where == "terminal" {
				want = "red ]0;titleend\n"
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(in, got); err != nil || string(got) != want {
				t.Errorf("%s on a %s: %q, %v, want %q", name, where, got, err, want)
			}
		}
	}
}

func openPipe(t *testing.T) (in, out *os.File) {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); out.Close() })
	return in, out
}

// openTerminal returns both sides of a terminal that passes text on unchanged.
func openTerminal(t *testing.T) (in, out *os.File) {
	t.Helper()
	in, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	n, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(in.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	if _, err := term.MakeRaw(int(out.Fd())); err != nil {
		t.Fatal(err)
	}
	return in, out
}
