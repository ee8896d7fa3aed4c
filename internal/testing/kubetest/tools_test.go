package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kube.sh says at its start that a library is missing, not after it has built for minutes.
func TestToolsNameMissingLibrary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pkg-config"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script(), "tools")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "PATH="+dir+":"+os.Getenv("PATH"))
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "libseccomp-dev") || strings.Contains(string(out), "building") {
		t.Errorf("after %s: %v, %s", time.Since(began), err, out)
	}
}
