package e2e

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
)

// OpenSSH's client reaches a real container, by SSH's own port and by the API alone.
func TestSSH(t *testing.T) {
	t.Parallel()
	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	s := startQuick(t, "CODEHUB_SSH_LISTEN="+listen, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage)
	s.createDesired("demo", "STANDBY")
	c := s.sshClient(listen, "demo")
	if err := os.WriteFile(filepath.Join(c.dir, "file"), bytes.Repeat([]byte("content\n"), 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	run, options := c.run, c.options
	// It wakes the workspace.
	if out, errs, status := run("ssh", "-F", options, "demo", "echo in; id -un; exit 3"); !strings.HasPrefix(out, "in\n") || status != 3 {
		t.Fatalf("%q %q %d", out, errs, status)
	}
	file := filepath.Join(c.dir, "file")
	for _, args := range [][]string{{file, "demo:copy"}, {"demo:copy", file + "2"}} {
		if _, errs, status := run("scp", append([]string{"-q", "-F", options}, args...)...); status != 0 {
			t.Fatalf("scp %v: %s", args, errs)
		}
	}
	one, _ := os.ReadFile(file)
	two, err := os.ReadFile(file + "2")
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("the copy has %d bytes, not %d: %v", len(two), len(one), err)
	}
	if out, errs, status := run(env.binary, "ssh", "demo", "--", "wc", "-c", "copy"); !strings.HasPrefix(out, "524288 ") || status != 0 {
		t.Errorf("through the API: %q %q %d", out, errs, status)
	}

	// A removed key ends its session.
	ctx, cancel := context.WithTimeout(t.Context(), 2*harness.Patience)
	defer cancel()
	open := exec.CommandContext(ctx, "ssh", "-F", options, "demo", "echo up; sleep 1000")
	stdout, err := open.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := open.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := s.api.DeleteSSHKey(t.Context(), c.keyID); err != nil {
		t.Fatal(err)
	}
	_ = open.Wait()
	if status := open.ProcessState.ExitCode(); status != 255 {
		t.Errorf("the session ended with status %d", status)
	}
	if _, errs, status := run("ssh", "-F", options, "demo", "true"); status != 255 || !strings.Contains(errs, "Permission denied") {
		t.Errorf("a removed key: %q %d", errs, status)
	}
	s.Stop()
	if err := s.Err(); err != nil {
		t.Errorf("the server's shutdown: %v", err)
	}
}

// sshClient is OpenSSH with a key that is registered for the administrator. It knows
// workspaces by their names.
type sshClient struct {
	*server
	dir     string
	options string // the configuration file
	keyID   string
}

// sshClient returns a client of the server's SSH address for workspaces of these names.
func (s *server) sshClient(listen string, names ...string) *sshClient {
	s.Helper()
	dir := s.TempDir()
	key := filepath.Join(dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", key).CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		s.Fatal(err)
	}
	registered, err := s.api.AddSSHKey(s.Context(), api.AddSSHKey{PublicKey: string(public)})
	if err != nil {
		s.Fatal(err)
	}
	about, err := s.api.SSHServer(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		s.Fatal(err)
	}
	var config string
	for _, name := range names {
		config += "Host " + name + "\n\tUser " + name + "\n"
	}
	config += "Host *\n\tHostName " + host + "\n\tPort " + port + "\n\tIdentityFile " + key + "\n\tIdentitiesOnly yes\n\tHostKeyAlias codehub\n" +
		"\tUserKnownHostsFile " + filepath.Join(dir, "known") + "\n\tStrictHostKeyChecking yes\n\tBatchMode yes\n\tLogLevel ERROR\n"
	for name, content := range map[string]string{"config": config, "known": "codehub " + about.HostKey + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			s.Fatal(err)
		}
	}
	return &sshClient{server: s, dir: dir, options: filepath.Join(dir, "config"), keyID: registered.ID}
}

// run runs a program of this machine to its end.
func (c *sshClient) run(program string, args ...string) (out, errs string, status int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 2*harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK=", "CODEHUB_URL="+c.URL, "CODEHUB_SESSION_TOKEN="+c.token, "XDG_CONFIG_HOME="+filepath.Join(c.dir, "xdg"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		c.Fatalf("%s: %v", program, err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}
