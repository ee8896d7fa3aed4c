package homequota

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel copies as many bytes as its own structures have.
func TestProjectStructures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ got, want uintptr }{
		"struct if_dqblk":                 {unsafe.Sizeof(quota{}), 72},
		"if_dqblk.dqb_curspace":           {unsafe.Offsetof(quota{}.bytes), 16},
		"if_dqblk.dqb_ihardlimit":         {unsafe.Offsetof(quota{}.inodeLimit), 24},
		"if_dqblk.dqb_valid":              {unsafe.Offsetof(quota{}.valid), 64},
		"struct fs_quota_stat":            {unsafe.Sizeof(quotaState{}), 80},
		"fs_quota_stat.qs_flags":          {unsafe.Offsetof(quotaState{}.flags), 2},
		"QCMD(Q_GETQUOTA, PRJQUOTA)":      {getQuota, 0x80000702},
		"QCMD(Q_SETQUOTA, PRJQUOTA)":      {setQuota, 0x80000802},
		"QCMD(Q_XGETQSTAT, PRJQUOTA)":     {getState, 0x580502},
		"projects that are not homes, -1": {lastProject >> 31, 0},
	} {
		if c.got != c.want {
			t.Errorf("%s is %#x, want %#x", name, c.got, c.want)
		}
	}
}

func TestProjectLimits(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]quota{
		0:                   {valid: 5},
		1:                   {blockLimit: 64, inodeLimit: 8192, valid: 5},
		minImage:            {blockLimit: 64 << 10, inodeLimit: 8192, valid: 5},
		10<<30 + quotaBlock: {blockLimit: 10<<20 + 64, inodeLimit: 10 << 17, valid: 5},
	} {
		if got := projectLimits(limit); got != want {
			t.Errorf("limit of %d bytes: %+v, want %+v", limit, got, want)
		}
	}
	half := projectLimits(minImage)
	half.bytes, half.inodes = 1<<20, half.inodeLimit/2
	if n := half.used(); n != minImage/2 {
		t.Errorf("%d bytes are used with half of the inodes", n)
	}
	half.bytes = minImage - 1<<20
	if n := half.used(); n != minImage-1<<20 {
		t.Errorf("%d bytes are used, want %d", n, half.bytes)
	}
	if n := (quota{bytes: 4096, inodes: 1}).used(); n != 4096 {
		t.Errorf("%d bytes are used without a limit, want 4096", n)
	}
	for name, taken := range map[string]quota{"files": {inodes: 1}, "blocks": {bytes: 1}, "a limit": {blockLimit: 1}, "a limit of inodes": {inodeLimit: 1}} {
		if taken.free() {
			t.Errorf("a project with %s is free", name)
		}
	}
	if !(quota{valid: 63}).free() {
		t.Error("a project without files and limits is in use")
	}
}

func ownsDisk(folder string) bool {
	own, shared := OwnDisk(folder)
	return own && shared
}

// Where project quotas are not enforced, no home gets a project, and plain homes stay what they are.
func TestHomesWithoutProjectQuotas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mount func(t *testing.T, at string)
		want  string
	}{
		"ext4 without quotas": {func(t *testing.T, at string) {
			check(t, Make(Image, at, minImage))
			t.Cleanup(func() { check(t, Remove(at)) })
		}, "they are turned off on this file system"},
		"tmpfs": {func(t *testing.T, at string) {
			check(t, os.Mkdir(filepath.Join(at, mountName), 0o700))
			check(t, unix.Mount("none", filepath.Join(at, mountName), "tmpfs", 0, ""))
			t.Cleanup(func() { check(t, unmount(filepath.Join(at, mountName))) })
		}, "neither XFS nor ext4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := t.TempDir()
			c.mount(t, at)
			at = filepath.Join(at, mountName)
			if kind := Detect(at); kind != None {
				t.Errorf("homes would be of the kind %q", kind)
			}
			if err := Probe(Project, at); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the probe: %v", err)
			}
			if left, err := filepath.Glob(filepath.Join(at, ".quota-probe*")); err != nil || len(left) > 0 {
				t.Errorf("left %v: %v", left, err)
			}
			folder := filepath.Join(at, "plain")
			check(t, os.Mkdir(folder, 0o700))
			check(t, Make(None, folder, 0))
			if _, known := Used(folder); known || Limits(folder) || ownsDisk(folder) || !Holds(folder, minImage) {
				t.Error("a plain home has a limit")
			}
			if err := Limit(folder, minImage); err != ErrKept {
				t.Errorf("Limit: %v", err)
			}
		})
	}
}
