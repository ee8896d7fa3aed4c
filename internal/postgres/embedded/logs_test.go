package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	acc, err := chooseAccounts("")
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLayout(dir, acc)
	if err != nil {
		t.Fatal(err)
	}
	defer l.root.Close()
	if err := os.WriteFile(filepath.Join(dir, "postgres/log/kept.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range keepLogs + 5 {
		name := fmt.Sprintf("postgresql-20260101-0000%02d.log", i)
		if err := os.WriteFile(filepath.Join(dir, "postgres/log", name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.pruneLogs(); err != nil {
		t.Fatal(err)
	}
	left := l.logFiles()
	if len(left) != keepLogs || left[0] != "log/postgresql-20260101-000005.log" {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres/log/kept.txt")); err != nil {
		t.Errorf("a file that is not a log: %v", err)
	}
}

func TestErrorLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ output, want string }{
		{"", ""},
		{"one\n\ntwo\n", ": one; two"},
		{"LOG:  starting\nFATAL:  no\nHINT:  do\nLOG:  down\n", ": FATAL:  no; HINT:  do"},
		{strings.Repeat("FATAL:  x\n", 9), ": " + strings.Repeat("FATAL:  x; ", 4) + "FATAL:  x"},
	} {
		if got := errorLines(c.output); got != c.want {
			t.Errorf("errorLines(%q) = %q, want %q", c.output, got, c.want)
		}
	}
}
