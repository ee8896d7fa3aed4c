package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/base/setting"
	"codehub/internal/runtime/docker"
	"codehub/internal/server/config"
)

// A server with a damaged extension does not begin to start: no data folder is made.
func TestDamagedExtensionStopsStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "lint.vsix")
	if err := os.WriteFile(file, []byte("PK\x03\x04 and no more"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	err := serve(t.Context(), config.Config{DataDir: data, Docker: docker.Settings{ExtensionsDir: dir}})
	var p *setting.Problem
	if !errors.As(err, &p) || p.Setting != "CODEHUB_EXTENSIONS_DIR" || !strings.Contains(p.Why, file) {
		t.Errorf("serve: %v", err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data folder: %v", err)
	}
}
