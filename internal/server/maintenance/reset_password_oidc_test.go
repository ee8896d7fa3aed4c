package maintenance

import (
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Where password logins are turned off, a user without a reset cannot log in with a
// password, and one with a reset can for a while.
func TestResetPasswordWithoutPasswordLogins(t *testing.T) {
	t.Parallel()
	ctx, dsn := t.Context(), pgtest.New(t, postgres.Migrate)
	db, err := postgres.Open(ctx, dsn, postgres.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	base, _ := url.Parse("https://codehub.example.com")
	a := auth.New(db, auth.Config{URL: base, Log: slog.New(slog.DiscardHandler), Settings: auth.Settings{NoPasswordLogin: true}})
	if _, err := a.CreateUser(ctx, "ann", "long enough", true); err != nil {
		t.Fatal(err)
	}
	login := func(password string) workspace.Code {
		_, err := a.Login(ctx, "ann", password, auth.Client{})
		return workspace.CodeOf(err)
	}
	if code := login("long enough"); code != workspace.CodeBadCredentials {
		t.Errorf("a password login: %q", code)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"secret":    "a secret of some length",
		"oidc.json": `{"providers":[{"id":"company","issuer":"https://login.example.com","client_id":"codehub","client_secret_file":"` + dir + `/secret"}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(ctx, "codehub", "reset-password", "--user", "ann", "--password-login", "1h")
	cmd.Env = append(os.Environ(), "CODEHUB_DATA_DIR="+dir, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_NO_PASSWORD_LOGIN=true",
		"CODEHUB_OIDC_FILE="+dir+"/oidc.json", "CODEHUB_URL=http://localhost:8080")
	cmd.Stdin = strings.NewReader("another one\n")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "For 1h the user may log in with this one at http://codehub.localhost:8080/login?with=password") {
		t.Fatalf("%v: %s", err, out)
	}
	if code := login("long enough"); code != workspace.CodeBadCredentials {
		t.Errorf("the former password: %q", code)
	}
	if code := login("another one"); code != "" {
		t.Errorf("the new password: %q", code)
	}
	u, err := db.UserByName(ctx, "ann")
	if err != nil || u.PasswordLoginUntil == nil || time.Until(*u.PasswordLoginUntil) > time.Hour {
		t.Errorf("%+v, %v", u, err)
	}
	if err := db.AllowPasswordLogin(ctx, u.ID, 0); err != nil {
		t.Fatal(err)
	}
	if code := login("another one"); code != workspace.CodeBadCredentials {
		t.Errorf("after the time is over: %q", code)
	}
}
