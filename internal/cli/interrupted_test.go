package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"codehub/client"
)

// stopAfter calls stop once something was written.
type stopAfter struct {
	buf  bytes.Buffer
	stop func()
}

func (s *stopAfter) Write(b []byte) (int, error) {
	defer s.stop()
	return s.buf.Write(b)
}

// An output that was cut off is an error, unless it is a log that was followed until now.
func TestCutOutputIsAnError(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	const id = "019a0000-0000-7000-8000-000000000001"
	first := `{"id":1,"at":"2026-01-02T03:04:05.5Z"}` + "\n"
	serve := func(broken bool) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch p := r.URL.Path; {
			case strings.HasSuffix(p, "/export"), strings.HasSuffix(p, "/usage"), strings.HasSuffix(p, "/logs"):
				fmt.Fprint(w, first, `{"id":2,"at":"2026-`)
				http.NewResponseController(w).Flush()
				if broken {
					panic(http.ErrAbortHandler)
				}
				<-r.Context().Done()
			default:
				fmt.Fprintf(w, `{"id": %[1]q, "workspace": {"id": %[1]q}}`, id)
			}
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	type command interface {
		Run(ctx context.Context, k *kong.Context, c *client.Client) error
	}
	for _, broken := range []bool{false, true} {
		at := serverFlags{URL: serve(broken)}
		for name, c := range map[string]struct {
			command
			message string // "": the command ends without an error when it is interrupted
		}{
			"audit":      {auditCmd{serverFlags: at, Export: true}, "--since 2026-01-02T03:04:05.5Z"},
			"usage":      {adminUsageCmd{serverFlags: at}, "the output is incomplete"},
			"logs":       {logsCmd{serverFlags: at, Workspace: id}, "the output is incomplete"},
			"admin logs": {adminLogsCmd{serverFlags: at, Workspace: id}, "the output is incomplete"},
			"follow":     {logsCmd{serverFlags: at, Workspace: id, Follow: true}, ""},
			"follow any": {adminLogsCmd{serverFlags: at, Workspace: id, Follow: true}, ""},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			out := &stopAfter{stop: cancel}
			if broken {
				out.stop = func() {}
			}
			server, err := at.connect()
			if err != nil {
				t.Fatal(err)
			}
			err = c.Run(ctx, &kong.Context{Kong: &kong.Kong{Stdout: out, Stderr: io.Discard}}, server)
			cancel()
			switch {
			case c.message == "" && !broken:
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			case err == nil, !strings.Contains(err.Error(), c.message):
				t.Errorf("%s, broken %v: %v", name, broken, err)
			case !strings.HasPrefix(out.buf.String(), first):
				t.Errorf("%s: %q", name, out.buf.String())
			}
		}
	}
}
