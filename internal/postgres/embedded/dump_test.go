package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The three latest dumps remain, and files of others. A full disk is named, and leaves no part of
// a dump.
func TestBackup(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	s := startServer(t, dir)
	folder := filepath.Join(dir, backupsName)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("2020010%dT000000Z-before-0.%d.0.dump", i+1, i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"mine.dump", partialDump} { // the latter of a process that was killed
		if err := os.WriteFile(filepath.Join(folder, name), []byte("some text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := Backup(t.Context(), Config{Dir: dir}, "1.0")
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(folder + "/*")
	if want := []string{folder + "/20200103T000000Z-before-0.2.0.dump", folder + "/20200104T000000Z-before-0.3.0.dump", path, folder + "/mine.dump"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("%v, want %v", left, want)
	}
	if head, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(head), "PGDMP") {
		t.Errorf("%q, %v", head[:min(5, len(head))], err)
	}
	// Another process that writes one keeps the lock.
	f, err := os.Create(filepath.Join(folder, partialDump))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ok, err := tryFlock(f); !ok || err != nil {
		t.Fatal(err)
	}
	if _, err := Backup(t.Context(), Config{Dir: dir}, "1.0"); err == nil || !strings.Contains(err.Error(), "another process is writing") {
		t.Errorf("while another one is written: %v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := dump(t.Context(), s.inst.path("pg_dump"), s.URL(), full, nil); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("on a full disk: %v", err)
	}
}
