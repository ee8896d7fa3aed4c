package cli

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"codehub/internal/users/auth"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// An account with a passkey logs in by browser; its passkeys are listed and renamed, its identities
// listed and unlinked, and an administrator removes its passkeys.
func TestIdentitiesAndPasskeys(t *testing.T) {
	t.Parallel()
	s := serveAPI(t)
	session, err := s.auth.Login(t.Context(), "ann", clientPassword, auth.Client{})
	if err != nil {
		t.Fatal(err)
	}
	_, token, err := s.auth.CreateToken(t.Context(), auth.Identity{Caller: session.Caller}, "test", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgx.Connect(t.Context(), s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(t.Context()) })
	id := uuid.NewString()
	bob := uuid.NewString()
	if _, err := db.Exec(t.Context(), `INSERT INTO users (id, username, username_key, password_hash) VALUES ($1, 'bob', 'bob', 'x')`, bob); err != nil {
		t.Fatal(err)
	}
	for sql, args := range map[string][]any{
		`INSERT INTO passkeys (id, user_id, credential_id, party, record, name) VALUES ($1, $2, 'y', 'localhost', '{}', 'Laptop')`:    {uuid.NewString(), bob},
		`INSERT INTO passkeys (id, user_id, credential_id, party, record, name) VALUES ($1, $2, 'x', 'localhost', '{}', 'Laptop')`:    {id, session.User.ID},
		`INSERT INTO user_identities (id, user_id, issuer, subject, username) VALUES ($1, $2, 'https://issuer.example', 's1', 'ann')`: {id, session.User.ID},
	} {
		if _, err := db.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	home := t.TempDir()
	run := func(stdin, want string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "codehub", args...)
		cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+home, "CODEHUB_URL="+s.url, "CODEHUB_SESSION_TOKEN="+token)
		cmd.Stdin = strings.NewReader(stdin)
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("codehub %s: %s", strings.Join(args, " "), out)
		}
	}
	run(clientPassword+"\n", "codehub login --device", "login", s.url, "-u", "ann")
	run("", "1 passkey", "users", "list")
	run("", "Laptop", "passkeys", "list")
	run("", "Recovery codes left: 0", "passkeys", "list")
	run("", `"name": "Laptop"`, "passkeys", "list", "-o", "json")
	run("", `there is no passkey "Phone"`, "passkeys", "rename", "Phone", "Tablet")
	run("", "1 to 100 visible characters", "passkeys", "rename", "Laptop", " ")
	run("", "The passkey is renamed.", "passkeys", "rename", "Laptop", "Phone")
	run("", "Phone", "passkeys", "list")
	run("", "The passkeys of bob are removed.", "users", "remove-passkeys", "bob")
	run("", "Remove your own passkeys with your password", "users", "remove-passkeys", "ann")
	run("", s.url+"/invitation#", "users", "create", "carl", "--invite")
	run("", s.url+"/invitation#", "users", "invite", "bob")
	run("", "invited until", "users", "list")
	run("", "Change your own password", "users", "invite", "ann")
	run("name\ndora\nbob\n", `line 3: the username "bob" is taken.`, "users", "import", "-")
	run("name,admin\ndora,true\n", "name,link\ndora,"+s.url+"/invitation#", "users", "import", "-")
	run("", "Phone", "passkeys", "list")
	if _, err := db.Exec(t.Context(), `DELETE FROM passkeys`); err != nil {
		t.Fatal(err)
	}
	run("", "There are no passkeys.", "passkeys", "list")
	run(clientPassword+"\n", "Logged in to", "login", s.url, "-u", "ann")
	run("", "https://issuer.example", "identities", "list")
	run("wrong password\n", "The current password is incorrect.", "identities", "unlink", id)
	run(clientPassword+"\n", "The login is unlinked.", "identities", "unlink", id)
	run(clientPassword+"\n", "no such identity", "identities", "unlink", id)
}
