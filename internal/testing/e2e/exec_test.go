package e2e

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"codehub/api"
)

// A command runs in a real container, as the workspace's user and in its home, and starts a
// stopped workspace. It gets a variable with line breaks whole. What the workspace uses is
// reported with the limits of its container. A command that holds the workspace awake is listed.
// It takes over 20 s beside other tests, as the image has an IDE to start.
func TestExecInContainer(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_WORKSPACE_CPUS=1.5", "CODEHUB_WORKSPACE_MEMORY=1g")
	const key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIG1v$HOME$(x)==\n\n-----END PRIVATE KEY-----\n"
	id := s.create(api.CreateWorkspace{Name: "alpha", DesiredState: new("STANDBY"), Env: map[string]string{"KEY": key}})
	s.awaitPhase(id, "STANDBY")
	c := s.api
	woken := false
	run := func(command api.Exec, stdin string) (string, int) {
		t.Helper()
		x, err := c.Exec(t.Context(), id, command)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = x.Stdin(t.Context(), strings.NewReader(stdin)) }()
		var out bytes.Buffer
		code, err := x.Run(t.Context(), &out, &out, func(api.Workspace) { woken = true })
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		return out.String(), code
	}
	if out, code := run(api.Exec{Shell: "id -un; pwd; cat"}, "hello\n"); out != "coder\n/home/coder\nhello\n" || code != 0 || !woken {
		t.Errorf("%q %d, woken %v", out, code, woken)
	}
	if out, code := run(api.Exec{Shell: "stty size; exit 3", Terminal: &api.ExecTerminal{Name: "xterm", Rows: 20, Cols: 70}}, ""); out != "20 70\r\n" || code != 3 {
		t.Errorf("%q %d", out, code)
	}
	if out, code := run(api.Exec{Shell: `printf %s "$KEY"`}, ""); out != key || code != 0 {
		t.Errorf("the variable has %q, want the key with its line breaks", out)
	}
	if u, err := c.Usage(t.Context(), id); err != nil || u.CPU <= 0 || u.Memory <= 0 || u.Memory > u.MemoryLimit || u.DiskSize != 0 || u.Processes <= 0 {
		t.Errorf("usage %+v %v", u, err) // the agent itself uses the processor
	} else if u.CPULimit != 1.5 || u.MemoryLimit != 1<<30 {
		t.Errorf("limits of %v processors and %d bytes, want those of the settings", u.CPULimit, u.MemoryLimit)
	}
	held, err := c.Exec(t.Context(), id, api.Exec{Args: []string{"codehub", "busy", "-m", "a long run", "--", "cat"}})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	go func() { _, _ = held.Run(t.Context(), io.Discard, io.Discard, nil) }()
	s.await(id, "the holder is listed", func(api.Workspace) bool {
		u, err := c.Usage(t.Context(), id)
		return err == nil && len(u.Holders) == 1 && u.Holders[0].What == "a long run"
	})
}
