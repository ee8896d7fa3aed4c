package enter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files of an image are replaced, also where it has links, and what they lead to stays.
func TestCopyFiles(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "etc")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(elsewhere, "kept")
	for _, dir := range []string{filepath.Join(from, "..data"), to} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(from, "..data", "passwd"), "ours")
	for _, link := range [][2]string{{"..data/passwd", filepath.Join(from, "passwd")}, {elsewhere, filepath.Join(to, "passwd")}} {
		if err := os.Symlink(link[0], link[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyFiles(from, to); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{filepath.Join(to, "passwd"): "ours", elsewhere: "kept"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s has %q (%v), want %q", name, got, err, want)
		}
	}
	if info, err := os.Stat(filepath.Join(to, "passwd")); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, err := os.ReadDir(to); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	if err := copyFiles(filepath.Join(from, "none"), to); err != nil {
		t.Error(err)
	}
}

func TestEnterRefusesRoot(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"0", "/none", "/bin/true"}, {"-1", "/none", "/bin/true"}, {"x", "/none", "/bin/true"}} {
		if Main(args) == 0 {
			t.Errorf("%q succeeded", args)
		}
	}
}

// Root of a Pod without a user namespace would be root of the node.
func TestOnHost(t *testing.T) {
	t.Parallel()
	for uids, want := range map[string]bool{
		"         0          0 4294967295\n": true,
		"0 0 1\n1 100000 65535\n":            true,
		"":                                   true,
		"         0    1048576      65536\n": false,
		"         1          1 10\n         0 7000 1\n": false,
	} {
		if got := onHost(uids); got != want {
			t.Errorf("%q: %v", uids, got)
		}
	}
	// This machine's root, or a user who has not entered any namespace.
	if err := enter("1", "/none", []string{"/bin/true"}); err == nil || !strings.Contains(err.Error(), "user namespace") {
		t.Errorf("enter: %v", err)
	}
}
