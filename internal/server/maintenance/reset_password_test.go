package maintenance

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// resetPassword runs the command with a password on its standard input.
func resetPassword(t *testing.T, password, env string, args ...string) (said string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "codehub", append([]string{"reset-password"}, args...)...)
	cmd.Env = append(os.Environ(), "CODEHUB_DATA_DIR="+t.TempDir(), env)
	cmd.Stdin = strings.NewReader(password + "\n")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// After the reset the user can log in again, and all other sessions have ended.
func TestResetPassword(t *testing.T) {
	t.Parallel()
	ctx, dsn := t.Context(), pgtest.New(t, postgres.Migrate)
	db, err := postgres.Open(ctx, dsn, postgres.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	u, err := db.CreateUser(ctx, postgres.User{Username: "Ann", PasswordHash: "$x"})
	if err != nil {
		t.Fatal(err)
	}
	session := make([]byte, 32)
	if err := db.CreateSession(ctx, session, u.ID, "", time.Now().Add(time.Hour), postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	// The way back in for a user who has lost the passkeys.
	hash := make([]byte, 32)
	if err := db.BeginPasskey(ctx, postgres.PasskeyAttempt{Hash: hash, UserID: u.ID, Login: true, Proof: postgres.PasswordProof("$x"), Lasts: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := db.AnswerPasskey(ctx, postgres.PasskeyAnswer{Hash: hash, Login: true, Session: append([]byte{1}, session[1:]...), Expires: time.Now().Add(time.Hour),
		Judge: func(postgres.PendingPasskey, []byte) (postgres.PasskeyVerdict, error) {
			return postgres.PasskeyVerdict{Add: &postgres.Passkey{Credential: []byte("x"), Party: "localhost", Record: []byte("{}"), Name: "Laptop"}, Codes: [][]byte{hash}}, nil
		}}); err != nil {
		t.Fatal(err)
	}
	yes := true
	if _, err := db.PatchAccount(ctx, workspace.System, u.ID, postgres.AccountPatch{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	for who, password := range map[string]string{"nobody": "long enough", "ann": "short"} {
		if said, err := resetPassword(t, password, "CODEHUB_DATABASE_URL="+dsn, "--user", who); err == nil {
			t.Errorf("%s, %q: %s", who, password, said)
		}
	}
	said, err := resetPassword(t, "long enough", "CODEHUB_DATABASE_URL="+dsn, "--user", "ann", "--admin")
	if err != nil || !strings.Contains(said, "The password of Ann is set. The passkeys are removed. The user is an administrator.") {
		t.Fatalf("%v: %s", err, said)
	}
	if list, codes, err := db.Passkeys(ctx, workspace.Caller{UserID: u.ID}); err != nil || len(list) != 0 || codes != 0 {
		t.Errorf("%d passkeys and %d codes are left, %v", len(list), codes, err)
	}
	if u, err = db.User(ctx, u.ID); err != nil || u.Disabled || !u.Admin {
		t.Errorf("%+v, %v", u, err)
	}
	if matches, ok := auth.Matches(u.PasswordHash, "long enough"); !matches || !ok {
		t.Error("it is another password")
	}
	if valid, err := db.ValidSessions(ctx, [][]byte{session}); err != nil || len(valid) > 0 {
		t.Errorf("a session is left: %v", err)
	}
}

// Where there is no installation none is made.
func TestResetPasswordOfNoInstallation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	said, err := resetPassword(t, "long enough", "CODEHUB_DATA_DIR="+dir, "--user", "ann")
	if err == nil || !strings.Contains(said, "no codehub has its database in "+dir) {
		t.Errorf("%v: %s", err, said)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v were made", left, err)
	}
}
