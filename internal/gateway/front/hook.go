package front

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	acmez "github.com/mholt/acmez/v3/acme"

	"codehub/internal/base/setting"
)

// hook answers DNS-01 challenges by a program of the administrator, which is called as
// HOOK present NAME VALUE and later as HOOK cleanup NAME VALUE. NAME is that of the TXT
// record, with a dot at its end. Two values may be needed under one name.
type hook struct {
	program       string
	timeout, wait time.Duration
	log           *slog.Logger

	mu sync.Mutex // one call at a time
}

func newHook(s Settings, log *slog.Logger) (*hook, error) {
	program, err := exec.LookPath(s.ACMEHook)
	if err != nil {
		return nil, setting.Invalid("CODEHUB_ACME_DNS_HOOK", err.Error(), "name a program that codehub may execute")
	}
	return &hook{program: program, timeout: s.ACMEHookTimeout, wait: s.ACMEHookWait, log: log}, nil
}

// Present creates the TXT record.
func (h *hook) Present(ctx context.Context, c acmez.Challenge) error {
	return h.run(ctx, "present", c)
}

// Wait gives the record time to reach all name servers.
func (h *hook) Wait(ctx context.Context, _ acmez.Challenge) error {
	t := time.NewTimer(h.wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// CleanUp removes the TXT record, also after the challenge has failed.
func (h *hook) CleanUp(ctx context.Context, c acmez.Challenge) error {
	return h.run(context.WithoutCancel(ctx), "cleanup", c)
}

func (h *hook) run(ctx context.Context, action string, c acmez.Challenge) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	name := c.DNS01TXTRecordName() + "."
	cmd := exec.CommandContext(ctx, h.program, action, name, c.DNS01KeyAuthorization())
	cmd.Env = hookEnvironment(os.Environ())
	// The hook's child processes end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	output := &tail{}
	cmd.Stdout, cmd.Stderr = output, output
	err := cmd.Run()
	h.log.Debug("DNS hook called", "action", action, "name", name, "output", output.String())
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("the DNS hook did not end within %s: %s", h.timeout, output)
	}
	if err != nil {
		return fmt.Errorf("the DNS hook failed to %s %s: %w: %s", action, name, err, output)
	}
	return nil
}

// hookEnvironment leaves out codehub's settings: some are secrets.
func hookEnvironment(environ []string) []string {
	var out []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "CODEHUB_") {
			out = append(out, kv)
		}
	}
	return out
}

// tail keeps the last bytes of an output, on one line.
type tail struct{ b []byte }

const maxTail = 1024

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - maxTail; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(t.b), "")), " ")
}
