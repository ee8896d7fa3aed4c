package docker

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/base/health"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
)

// vsix is an extension with a program.
func vsix(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	zw := zip.NewWriter(&b)
	for name, content := range map[string]string{
		"extension/package.json": `{"publisher": "Acme", "name": "Lint", "version": "1.2.0", "engines": {"vscode": "^1.80.0"}}`, "extension/bin/lint": "program",
	} {
		h := &zip.FileHeader{Name: name}
		h.SetMode(0o755)
		w, err := zw.CreateHeader(h)
		check(t, err)
		must(t)(w.Write([]byte(content)))
	}
	check(t, zw.Close())
	return b.String()
}

// The IDE's volume holds the extensions of the folder, and workspaces start with the last
// ones while the folder is damaged.
func TestIDEVolumeHasExtensions(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	dir := t.TempDir()
	putFileWith(t, dir, "lint.vsix", vsix(t))
	conditions := &health.Monitor{}
	const bundled = "code-server/lib/vscode/extensions"
	own := bundled + "/git/package.json"
	ide := importImage(t, newRuntime(t, nil), nil, files(t,
		tar.Header{Name: account.IDEStart[1:], Typeflag: tar.TypeReg, Mode: 0o755},
		tar.Header{Name: account.IDEDir[1:] + "/" + own, Typeflag: tar.TypeReg, Mode: 0o644}))
	r := newRuntime(t, func(c *Config) { c.ExtensionsDir, c.Conditions, c.IDEImage = dir, conditions, ide })
	program := bundled + "/acme.lint-1.2.0/bin/lint"
	volume := func() (string, func(file string) (string, fs.FileMode)) {
		t.Helper()
		name, _, err := r.tools.IDE(t.Context())
		check(t, err)
		v, err := r.engine.API.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{})
		check(t, err)
		return name, func(file string) (string, fs.FileMode) {
			file = filepath.Join(v.Volume.Mountpoint, file)
			info, err := os.Lstat(file)
			if err != nil {
				return "", 0
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			return string(content), info.Mode()
		}
	}
	first, in := volume()
	if content, mode := in(program); content != "program" || mode != 0o555 {
		t.Errorf("the extension's program: %q, %v", content, mode)
	}
	if _, mode := in(own); mode != 0o444 {
		t.Errorf("the IDE's own extension: %v", mode)
	}
	scratch, err := r.engine.API.VolumeList(t.Context(), client.VolumeListOptions{Filters: r.engine.Filter(engine.RoleScratch)})
	if err != nil || len(scratch.Items) > 0 {
		t.Errorf("what was copied to the helper is left: %+v, %v", scratch.Items, err)
	}

	putFileWith(t, dir, "lint.vsix", "being copied")
	if again, _ := volume(); again != first || conditions.Err("extensions") == nil || !strings.Contains(conditions.Err("extensions").Error(), "lint.vsix") {
		t.Errorf("with a damaged file: %s, not %s; %v", again, first, conditions.Err("extensions"))
	}
	conditions = &health.Monitor{}
	r = newRuntime(t, func(c *Config) { // as after a restart
		c.Installation, c.Subnet, c.ExtensionsDir, c.Conditions, c.IDEImage = r.cfg.Installation, r.cfg.Subnet, dir, conditions, ide
	})
	if plain, in := volume(); plain == first {
		t.Error("the volume with extensions was made from a damaged file")
	} else if _, mode := in(own); mode == 0 {
		t.Error("the IDE is not there")
	}
	check(t, os.Remove(filepath.Join(dir, "lint.vsix")))
	_, in = volume()
	if _, mode := in(program); mode != 0 || conditions.Err("extensions") != nil {
		t.Errorf("a removed extension is there: %v; %v", mode, conditions.Err("extensions"))
	}
	if err := r.tools.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := r.engine.API.VolumeInspect(t.Context(), first, client.VolumeInspectOptions{}); err == nil {
		t.Error("the volume with the removed extension is still there")
	}
}
