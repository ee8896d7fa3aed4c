package maintenance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/sealed"
	"codehub/internal/users/secrets"
)

func TestSecretKeyRotate(t *testing.T) {
	t.Parallel()
	c := bucketCommand{TB: t, dsn: pgtest.New(t, postgres.Migrate), folder: t.TempDir()}
	if _, said, exit := c.run("secret-key", "rotate"); exit != 2 || !strings.Contains(said, "CODEHUB_SECRET_KEY_FILE") {
		t.Errorf("without a file: exit %d: %s", exit, said)
	}
	line, _, exit := c.run("secret-key", "new")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(line), 0o640); err != nil || exit != 0 {
		t.Fatal(err, exit)
	}
	old, _, _ := strings.Cut(line, ":")
	// A running server stores a secret, and reads it with the new key later.
	d := fixture.OpenDatabase(t, c.dsn, postgres.Options{})
	server, err := sealed.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	ann := d.AddUser("ann")
	ws := d.AddWorkspace(ann, "shop")
	service := secrets.New(d.DB, server)
	if _, err := service.Create(t.Context(), ann, api.CreateSecret{Name: "npm", Value: "hunter2", Env: "NPM_TOKEN"}); err != nil {
		t.Fatal(err)
	}
	out, said, exit := c.run("secret-key", "rotate", "--secret-key-file", file)
	if exit != 0 || !strings.Contains(out, "is the first one in "+file) || !strings.Contains(out, "Values encrypted again: 1.") || !strings.Contains(out, "The database no longer needs "+old+".") {
		t.Errorf("exit %d: %s%s", exit, out, said)
	}
	var setup agent.Setup
	if err := service.Deliver(t.Context(), ws, &setup); err != nil || setup.Env["NPM_TOKEN"] != "hunter2" || server.Keys()[1] != old {
		t.Errorf("%+v, %v", setup, err)
	}
	ring, err := sealed.Open(file)
	if err != nil || len(ring.Keys()) != 2 || ring.Keys()[1] != old {
		t.Errorf("%v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if out, said, exit := c.run("secret-key", "rotate", "--existing", "--secret-key-file", file); exit != 0 || strings.Contains(out, "is the first one") {
		t.Errorf("exit %d: %s%s", exit, out, said)
	}
}

// The embedded database has its key in the data folder; one of an administrator's own has none
// without the setting.
func TestWhereKeysAre(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, err := installation.OpenKeys(config.Config{DataDir: dir})
	if err != nil || keys.File() != filepath.Join(dir, "secret.key") || len(keys.Keys()) != 1 {
		t.Errorf("%v", err)
	}
	again, err := installation.OpenKeys(config.Config{DataDir: dir})
	if err != nil || again.Keys()[0] != keys.Keys()[0] {
		t.Errorf("%v", err)
	}
	if keys, err := installation.OpenKeys(config.Config{DataDir: dir, DatabaseURL: "postgres://x"}); err != nil || keys.File() != "" {
		t.Errorf("%v", err)
	}
}
