package image

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
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/dockertest"
)

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
		check(t, errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Chmod(next, mode), os.Rename(next, file)))
	}
	write("registry.example.com", "hunter2", 0o600)
	var log bytes.Buffer
	conditions := &health.Monitor{}
	r := newImages(t, engine.Config{
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Conditions: conditions,
	}, Config{RegistryAuthFile: file})
	t.Cleanup(func() {
		for _, image := range []string{ref, other} {
			_, _ = r.API.ImageRemove(context.Background(), image, client.ImageRemoveOptions{Force: true})
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
	check(t, r.pull(t.Context(), ref, "ann", nil))
	if err := conditions.Err("registry-login"); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a file that all can read: %v", err)
	}
	if got, err := r.Newest(t.Context(), ref, true); err != nil || got.ID == "" || got.Digest == "" {
		t.Errorf("newest: %+v, %v", got, err)
	}
	check(t, r.pull(t.Context(), other, "bob", nil))
	if sent := foreign.Logins(); len(sent) > 0 {
		t.Errorf("a user's own registry got %q", sent)
	}
	check(t, os.Remove(file))
	refused(runtime.MsgLoginNeeded)
	if err := conditions.Err("registry-login"); err == nil {
		t.Error("no condition without the file")
	}
	write(host, "hunter2", 0o600)
	r.CheckLogins()
	if err := conditions.Err("registry-login"); err != nil {
		t.Errorf("condition = %v", err)
	}
	for _, secret := range []string{"hunter", base64.StdEncoding.EncodeToString([]byte("ann:hunter2"))} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}
