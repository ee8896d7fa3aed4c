package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/client"

	"codehub/internal/dockertest"
	"codehub/internal/health"
	"codehub/internal/runtime"
)

func TestParseAuthFile(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("ann:pass:word"))
	logins, err := parseAuthFile([]byte(`{"auths": {
		"https://index.docker.io/v1/": {"auth": "` + basic + `"},
		"Registry.example.com:5000": {"username": "bob", "password": "secret"},
		"https://other.example.com": {"identitytoken": "token"}
	}, "HttpHeaders": {}}`))
	if err != nil || len(logins) != 3 {
		t.Fatalf("%d logins (%v)", len(logins), err)
	}
	for host, want := range map[string][3]string{
		"docker.io": {"ann", "pass:word", ""}, "registry.example.com:5000": {"bob", "secret", ""}, "other.example.com": {"", "", "token"},
	} {
		a, err := authconfig.Decode(logins[host].encoded)
		if err != nil || a.Username != want[0] || a.Password != want[1] || a.IdentityToken != want[2] || a.Auth != "" {
			t.Errorf("%s: %+v (%v)", host, a, err)
		}
	}
}

// No error repeats a part of the file.
func TestWrongAuthFiles(t *testing.T) {
	t.Parallel()
	for content, says := range map[string]string{
		`hunter2`:                                                                                      "format",
		`{"auths": {"a": "hunter2"}}`:                                                                  "format",
		`{"auths": {}, "credsStore": "hunter2"}`:                                                       "credential helpers",
		`{"credHelpers": {"registry.example.com": "hunter2"}}`:                                         "credential helpers",
		`{"auths": {"registry.example.com": {}}}`:                                                      "username",
		`{"auths": {"registry.example.com": {"username": "a"}}}`:                                       "username",
		`{"auths": {"registry.example.com": {"auth": "hunter2"}}}`:                                     "base64",
		`{"auths": {"registry.example.com/team": {"username": "a", "password": "hunter2"}}}`:           "without a repository",
		`{"auths": {"https://user:hunter2@registry.example.com": {"username": "a", "password": "b"}}}`: "not a registry",
		`{"auths": {"": {"username": "a", "password": "b"}}}`:                                          "registry",
		`{"auths": {"docker.io": {"username": "a", "password": "b"}, "index.docker.io": {"username": "a", "password": "b"}}}`: "more than one",
	} {
		_, err := parseAuthFile([]byte(content))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", content, err)
		}
	}
}

func TestAuthFileIsNoPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAuthFile(pipe); err == nil {
		t.Error("no error")
	}
}

// Credentials go to their own registry alone, are read again at each pull, and appear in
// no error and no log, although the registry repeats them.
func TestRegistryLogin(t *testing.T) {
	t.Parallel()
	registry, foreign := dockertest.NewRegistry(t), dockertest.NewRegistry(t)
	registry.SetLogin("ann", "hunter2")
	ref := registry.Add("private", dockertest.Layers(1, 1<<10, 0))
	other := foreign.Add("own", dockertest.Layers(1, 1<<10, 0))
	host, _, _ := strings.Cut(ref, "/")
	file := filepath.Join(t.TempDir(), "auth.json")
	write := func(host, password string, mode os.FileMode) {
		t.Helper()
		text := fmt.Sprintf(`{"auths": {%q: {"username": "ann", "password": %q}}}`, host, password)
		next := file + ".new"
		if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Chmod(next, mode), os.Rename(next, file)); err != nil {
			t.Fatal(err)
		}
	}
	write("registry.example.com", "hunter2", 0o600)
	var log bytes.Buffer
	conditions := &health.Monitor{}
	r := newRuntime(t, func(c *Config) {
		c.RegistryAuthFile, c.Conditions = file, conditions
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	t.Cleanup(func() {
		for _, image := range []string{ref, other} {
			_, _ = r.api.ImageRemove(context.Background(), image, client.ImageRemoveOptions{Force: true})
		}
	})
	refused := func(says string) {
		t.Helper()
		var pull *runtime.PullError
		err := r.pull(t.Context(), ref, "ann", nil)
		if !errors.As(err, &pull) || pull.Message != fmt.Sprintf(says, host) {
			t.Errorf("error = %v", err)
		}
		if _, err := r.Newest(t.Context(), ref, true); err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("newest: %v", err)
		}
	}
	refused(runtime.MsgLoginNeeded)
	if sent := registry.Logins(); len(sent) > 0 {
		t.Fatalf("another registry's login was sent: %q", sent)
	}
	write(host, "hunter3", 0o600)
	refused(runtime.MsgLoginRefused)
	write(host, "hunter2", 0o644)
	if err := r.pull(t.Context(), ref, "ann", nil); err != nil {
		t.Fatal(err)
	}
	if err := conditions.Err("registry-login"); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a file that all can read: %v", err)
	}
	if got, err := r.Newest(t.Context(), ref, true); err != nil || got.ID == "" || got.Digest == "" {
		t.Errorf("newest: %+v, %v", got, err)
	}
	if err := r.pull(t.Context(), other, "bob", nil); err != nil {
		t.Fatal(err)
	}
	if sent := foreign.Logins(); len(sent) > 0 {
		t.Errorf("a user's own registry got %q", sent)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	refused(runtime.MsgLoginNeeded)
	if err := conditions.Err("registry-login"); err == nil {
		t.Error("no condition without the file")
	}
	write(host, "hunter2", 0o600)
	if err := r.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conditions.Err("registry-login"); err != nil {
		t.Errorf("condition = %v", err)
	}
	for _, secret := range []string{"hunter", base64.StdEncoding.EncodeToString([]byte("ann:hunter2"))} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}
