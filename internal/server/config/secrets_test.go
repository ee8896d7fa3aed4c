package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/server/config"
)

// A secret may be in a file, whose name is in the variable with _FILE. It is not in what is shown
// of the settings.
func TestSecretsFromFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("postgres://codehub:s3cret@db/codehub?sslpassword=s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CODEHUB_DATABASE_URL", "CODEHUB_REDIS_URL", "CODEHUB_ADMIN_PASSWORD"} {
		t.Setenv(name, "")
	}
	t.Setenv("CODEHUB_DATABASE_URL_FILE", file)
	t.Setenv("CODEHUB_LOG_LEVEL", "debug")
	t.Setenv("CODEHUB_ADMIN_PASSWORD", "s3cret word")
	t.Setenv("CODEHUB_ACME_DIRECTORY", "https://user:s3cret@acme.example.com/directory")
	cfg, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.DatabaseURL != "postgres://codehub:s3cret@db/codehub?sslpassword=s3cret" {
		t.Errorf("the setting is %q", cfg.DatabaseURL)
	}
	want := map[string]api.Setting{
		"CODEHUB_DATABASE_URL":   {Value: "postgres://codehub:xxxxx@db/codehub", From: api.FromFile},
		"CODEHUB_ADMIN_PASSWORD": {Value: api.SecretSet, From: api.FromEnvironment},
		"CODEHUB_REDIS_URL":      {Value: api.SecretNotSet, From: api.FromDefault},
		"CODEHUB_LOG_LEVEL":      {Value: "debug", From: api.FromEnvironment},
		"CODEHUB_LOG_FORMAT":     {Value: "text", From: api.FromDefault},
	}
	for _, e := range cfg.Effective() {
		if w, ok := want[e.Setting]; ok && (e.Value != w.Value || e.From != w.From) {
			t.Errorf("%s: %+v", e.Setting, e)
		}
		if strings.Contains(e.Value, "s3cret") {
			t.Errorf("%s shows the password", e.Setting)
		}
	}
	t.Setenv("CODEHUB_DATABASE_URL", "postgres://other")
	if err := config.ReadSecrets(); err == nil || !strings.Contains(err.Error(), "CODEHUB_DATABASE_URL_FILE: CODEHUB_DATABASE_URL is set as well") {
		t.Errorf("both ways: %v", err)
	}
	for _, tc := range []struct{ file, want string }{{"/nonexistent", "no such file"}, {os.DevNull, "is empty"}} {
		t.Setenv("CODEHUB_DATABASE_URL", "")
		t.Setenv("CODEHUB_DATABASE_URL_FILE", tc.file)
		if err := config.ReadSecrets(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.file, err)
		}
	}
}

// systemd puts the credentials of a unit into a folder of the unit's own.
func TestSecretFromCredential(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secrets_redis-url"), []byte("redis://cache"), 0o400); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CODEHUB_REDIS_URL", "")
	t.Setenv("CODEHUB_REDIS_URL_FILE", "secrets_redis-url")
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	if err := config.ReadSecrets(); err != nil {
		t.Fatal(err)
	}
	if got := os.Getenv("CODEHUB_REDIS_URL"); got != "redis://cache" {
		t.Errorf("the setting is %q", got)
	}
	t.Setenv("CODEHUB_REDIS_URL", "")
	t.Setenv("CODEHUB_REDIS_URL_FILE", "redis-url")
	if err := config.ReadSecrets(); err == nil || !strings.Contains(err.Error(), "name a credential of the unit") {
		t.Errorf("a name that is no credential: %v", err)
	}
}
