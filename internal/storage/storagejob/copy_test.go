package storagejob

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/testing/archivetest"
)

func TestCopyKeepsEverything(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	archivetest.Corpus(t, from)
	before := archivetest.Snapshot(t, from)
	var out bytes.Buffer
	check(t, Copy(t.Context(), from, to, &out))
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, from)); diff != "" {
		t.Errorf("copying changed the home:\n%s", diff)
	}
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, to)); diff != "" {
		t.Errorf("the copy differs:\n%s", diff)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var last CopyReport
	check(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	if !last.Done || last.Entries == 0 || len(last.Digest) != 64 {
		t.Errorf("the last line is %+v", last)
	}
}

func TestCopyRefusesFolderWithContent(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	check(t, os.WriteFile(filepath.Join(from, "file"), []byte("1"), 0o600))
	check(t, os.WriteFile(filepath.Join(to, "other"), []byte("2"), 0o600))
	if err := Copy(t.Context(), from, to, &bytes.Buffer{}); err == nil {
		t.Error("copied into a folder that is not empty")
	}
}

func TestCopyEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Copy(ctx, t.TempDir(), t.TempDir(), &bytes.Buffer{}); err == nil {
		t.Error("no error")
	}
}

// A copy works with the capabilities of its container.
func TestCopyRunsWithContainerCapabilities(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: only root has capabilities to drop")
	}
	setpriv, err := exec.LookPath("setpriv")
	check(t, err)
	from, to := t.TempDir(), t.TempDir()
	archivetest.Corpus(t, from)
	before := archivetest.Snapshot(t, from)
	cmd := exec.Command(setpriv, "--no-new-privs", "--inh-caps=-all",
		"--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+setfcap", os.Args[0])
	cmd.Env = append(os.Environ(), testCopy+"="+from+":"+to)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, to)); diff != "" {
		t.Errorf("the copy differs:\n%s", diff)
	}
}
