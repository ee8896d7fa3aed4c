package maintenance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The server's user imports the homes of all users with the capability that docs/move.md#import-from-codehubs-first-version
// gives it, and is warned without it.
func TestCapabilityReadsAllHomes(t *testing.T) {
	const file = "CODEHUB_TEST_UNREADABLE"
	if path := os.Getenv(file); path != "" {
		_, err := os.ReadFile(path)
		fmt.Printf("uid %d, reads all: %v, read: %v\n", os.Geteuid(), readsAllFiles(), err == nil)
		os.Exit(0)
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and setpriv")
	}
	dir := t.TempDir()
	private := filepath.Join(dir, "home")
	if err := os.WriteFile(private, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "test")
	if err := os.WriteFile(program, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The other process exits in the middle of its test, and leaves its temporary files.
	temporary := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(temporary, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	user := []string{"--reuid=65534", "--regid=65534", "--clear-groups"}
	capable := append(user[:3:3], "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
	for want, args := range map[string][]string{"reads all: false, read: false": user, "reads all: true, read: true": capable} {
		cmd := exec.Command(setpriv, append(args, program, "-test.run=^TestCapabilityReadsAllHomes$")...)
		cmd.Env = append(os.Environ(), file+"="+private, "TMPDIR="+temporary)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "uid 65534, "+want) {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}
