package home

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/testing/harness"
)

func TestDisks(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newHomes(t, "", Config{DataDir: filepath.Join(t.TempDir(), "not", "made", "yet")}, nil)
	disks, err := r.Disks(t.Context())
	if err != nil || len(disks) == 0 || !strings.HasPrefix(disks[0].Name, "the data folder") {
		t.Fatalf("disks = %+v, %v", disks, err)
	}
	device := func(path string) uint64 {
		d, _, err := diskOf(path)
		check(t, err)
		return d
	}
	if device(os.TempDir()) != device(filepath.Join(os.TempDir(), "none", "at", "all")) {
		t.Error("a missing folder is on another disk than its parent")
	}
	root, err := r.dockerRoot(t.Context())
	if err != nil || root == "" {
		t.Fatalf("Docker's directory = %q, %v", root, err)
	}
	if one := device(r.cfg.DataDir) == device(root); one != (len(disks) == 1) {
		t.Errorf("disks = %+v; same disk: %v", disks, one)
	}
	r.cfg.DataDir = root // the same disk
	if disks, err = r.Disks(t.Context()); err != nil || len(disks) != 1 {
		t.Errorf("disks = %+v, %v", disks, err)
	}
	remote := newHomes(t, "tcp://192.0.2.1:2375", Config{}, nil)
	if disks, err = remote.Disks(t.Context()); err != nil || len(disks) != 1 {
		t.Errorf("with Docker on another machine: %+v, %v", disks, err)
	}
}
