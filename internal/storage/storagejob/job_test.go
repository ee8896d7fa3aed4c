package storagejob

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/testing/archivetest"
)

// A home is restored unchanged, into a folder with the remains of an earlier attempt.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	home, object := t.TempDir(), t.TempDir()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)
	packed := succeed(t, archiveSpec(), Dirs{Home: home, Object: object})
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("packing left traces in the home:\n%s", diff)
	}
	meta := readMeta(t, object)
	want := testMeta()
	want.Describe(packed.result.Stats)
	if diff := cmp.Diff(want, *meta); diff != "" {
		t.Errorf("the .meta is (-want +got):\n%s", diff)
	}
	if names := namesIn(t, object); len(names) != 2 {
		t.Errorf("the folder of the archive holds %q", names)
	}

	restored := t.TempDir()
	archivetest.Corpus(t, restored) // the remains have all kinds of entries
	outside := t.TempDir()
	check(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	check(t, os.Symlink(outside, filepath.Join(restored, "out")))
	unpacked := succeed(t, restoreSpec(meta), Dirs{Home: restored, Object: object})
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
		t.Errorf("the restored home differs:\n%s", diff)
	}
	if !exists(t, filepath.Join(outside, "precious")) {
		t.Error("clearing the home followed a link")
	}
	stats := packed.result.Stats
	stats.Skipped, stats.Fingerprint = 0, ""
	if diff := cmp.Diff(stats, unpacked.result.Stats); diff != "" {
		t.Errorf("packed and unpacked counts differ (-packed +unpacked):\n%s", diff)
	}

	for _, r := range []struct {
		report
		step string
	}{{packed, runtime.StepPacking}, {unpacked, runtime.StepUnpacking}} {
		last := r.progress[len(r.progress)-1]
		if last != (Progress{r.step, stats.Bytes, stats.Bytes, stats.Entries, stats.Entries}) {
			t.Errorf("the last progress is %+v of %+v", last, stats)
		}
		for i, p := range r.progress[1:] {
			q := r.progress[i]
			if q.Step == runtime.StepMeasuring { // of a home whose archive may not fit, which is reported if it takes long
				continue
			}
			if p.Bytes < q.Bytes || p.Entries < q.Entries || p.Step != r.step {
				t.Errorf("progress went from %+v to %+v", q, p)
			}
		}
	}
	if first := unpacked.progress[0]; first.BytesTotal != meta.Bytes || first.EntriesTotal != meta.Entries {
		t.Errorf("the first progress of a restore is %+v", first)
	}

	// A job replaces what an earlier job of its claim has stored.
	again := succeed(t, archiveSpec(), Dirs{Home: restored, Object: object})
	if again.result.Stats.SHA256 != stats.SHA256 {
		t.Error("the archive of the restored home differs from the first")
	}
}

func namesIn(tb testing.TB, dir string) []string {
	tb.Helper()
	list, err := os.ReadDir(dir)
	check(tb, err)
	var names []string
	for _, d := range list {
		names = append(names, d.Name())
	}
	return names
}

// An empty archive does not set the home's attributes.
func TestRestoreEmptyArchive(t *testing.T) {
	t.Parallel()
	home, object := t.TempDir(), t.TempDir()
	content, stats, err := archive.Empty()
	check(t, err)
	check(t, os.WriteFile(filepath.Join(object, ObjectName), content, 0o600))
	meta := testMeta()
	meta.Describe(stats)
	check(t, os.WriteFile(filepath.Join(home, "old"), nil, 0o600))
	check(t, unix.Chmod(home, 0o1751))
	succeed(t, restoreSpec(&meta), Dirs{Home: home, Object: object})
	var st unix.Stat_t
	check(t, unix.Stat(home, &st))
	if names := namesIn(t, home); len(names) > 0 || st.Mode&0o7777 != 0o1751 {
		t.Errorf("the home has mode %o and holds %q", st.Mode, names)
	}
}

// Each failure has its kind, and leaves no result behind.
func TestErrorKinds(t *testing.T) {
	t.Parallel()
	home, object := smallHome(t), t.TempDir()
	succeed(t, archiveSpec(), Dirs{Home: home, Object: object})
	meta := readMeta(t, object)
	before := archivetest.Snapshot(t, home)

	restore := func(t *testing.T, object string, change func(*Spec), kind ErrorKind, touched bool) {
		t.Parallel()
		restored := t.TempDir()
		check(t, os.WriteFile(filepath.Join(restored, "remains"), nil, 0o600))
		spec := restoreSpec(meta)
		change(&spec)
		do(t.Context(), t, spec, Dirs{Home: restored, Object: object}).wantError(t, kind)
		if names := namesIn(t, restored); len(names) > 0 == touched {
			t.Errorf("the home holds %q", names)
		}
	}
	damaged := func(t *testing.T, damage func([]byte) []byte) string {
		b, err := os.ReadFile(filepath.Join(object, ObjectName))
		check(t, err)
		dir := t.TempDir()
		check(t, os.WriteFile(filepath.Join(dir, ObjectName), damage(b), 0o600))
		return dir
	}
	none := func(*Spec) {}
	t.Run("archive missing", func(t *testing.T) { restore(t, t.TempDir(), none, NotFound, false) })
	t.Run("folder missing", func(t *testing.T) { restore(t, filepath.Join(t.TempDir(), "gone"), none, Unavailable, false) })
	t.Run("archive cut short", func(t *testing.T) {
		restore(t, damaged(t, func(b []byte) []byte { return b[:len(b)-1000] }), none, Corrupted, true)
	})
	t.Run("archive damaged", func(t *testing.T) {
		restore(t, damaged(t, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), none, Corrupted, true)
	})
	t.Run("another archive", func(t *testing.T) {
		restore(t, object, func(s *Spec) { s.Meta.SHA256 = strings.Repeat("0", 64) }, Corrupted, true)
	})
	t.Run("more than expected", func(t *testing.T) {
		restore(t, object, func(s *Spec) { s.Meta.Bytes-- }, Corrupted, true)
	})
	t.Run("not enough space", func(t *testing.T) {
		restore(t, object, func(s *Spec) { s.Meta.Bytes = 1 << 60 }, DiskFull, true)
	})
	t.Run("home missing", func(t *testing.T) {
		t.Parallel()
		for _, spec := range []Spec{archiveSpec(), restoreSpec(meta)} {
			dirs := Dirs{Home: filepath.Join(t.TempDir(), "gone"), Object: object}
			if spec.Kind == "archive" {
				dirs.Object = t.TempDir()
			}
			do(t.Context(), t, spec, dirs).wantError(t, Failed)
		}
	})
	t.Run("folder of the archive missing", func(t *testing.T) {
		t.Parallel()
		do(t.Context(), t, archiveSpec(), Dirs{Home: home, Object: filepath.Join(t.TempDir(), "gone")}).wantError(t, Unavailable)
	})
	t.Run("home changes", func(t *testing.T) {
		t.Parallel()
		home, object := smallHome(t), t.TempDir()
		f, err := os.Create(filepath.Join(home, "log"))
		check(t, err)
		defer f.Close()
		_, err = f.Write(randomBytes(64 << 20))
		check(t, err)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = f.WriteAt([]byte("x"), 1000)
				}
			}
		}()
		do(t.Context(), t, archiveSpec(), Dirs{Home: home, Object: object}).wantError(t, Changed)
		close(stop)
		<-stopped
		if names := namesIn(t, object); len(names) > 0 {
			t.Errorf("the folder of the archive holds %q", names)
		}
	})
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("the home that was packed changed:\n%s", diff)
	}
}

// The stages of each kind of job, in order.
var (
	archiveStages = []string{"pack", "meta", "done"}
	restoreStages = []string{"wipe", "unpack", "done"}
)

// A job that is stopped at any stage ends and reports it.
func TestStopped(t *testing.T) {
	t.Parallel()
	home, object := smallHome(t), t.TempDir()
	succeed(t, archiveSpec(), Dirs{Home: home, Object: object})
	meta := readMeta(t, object)
	stopAt := func(t *testing.T, spec Spec, dirs Dirs, stage string) report {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		seen := false
		r := doJob(ctx, t, spec, dirs, func(j *job) {
			j.stage = func(s string) {
				if s == stage {
					seen = true
					cancel(errStopped)
				}
			}
		})
		if !seen {
			t.Errorf("the job did not reach %q", stage)
		}
		return r
	}
	for _, stage := range archiveStages[:2] {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			object := t.TempDir()
			stopAt(t, archiveSpec(), Dirs{Home: home, Object: object}, stage).wantError(t, Stopped)
			if exists(t, filepath.Join(object, archive.MetaKey(ObjectName))) {
				t.Error("there is a .meta")
			}
			if stage == "pack" && len(namesIn(t, object)) > 0 {
				t.Errorf("the folder holds %q", namesIn(t, object))
			}
		})
	}
	for _, stage := range restoreStages[1:2] { // TestKilled has them all
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			restored := smallHome(t)
			stopAt(t, restoreSpec(meta), Dirs{Home: restored, Object: object}, stage).wantError(t, Stopped)
			succeed(t, restoreSpec(meta), Dirs{Home: restored, Object: object})
			if diff := archivetest.Diff(archivetest.Snapshot(t, home), archivetest.Snapshot(t, restored)); diff != "" {
				t.Errorf("the restored home differs:\n%s", diff)
			}
		})
	}
}

// wipe fails without removing anything below a mount in the home.
func TestWipeStaysOnItsDevice(t *testing.T) {
	t.Parallel()
	inMountNamespace(t, func(t *testing.T) {
		home := t.TempDir()
		inner := filepath.Join(home, "mounted")
		check(t, os.Mkdir(inner, 0o700))
		check(t, syscall.Mount("none", inner, "tmpfs", 0, "size=1m"))
		t.Cleanup(func() { check(t, syscall.Unmount(inner, syscall.MNT_DETACH)) })
		check(t, os.WriteFile(filepath.Join(inner, "precious"), nil, 0o600))
		if err := wipe(t.Context(), home); err == nil || !exists(t, filepath.Join(inner, "precious")) {
			t.Errorf("wipe: %v", err)
		}
	})
}

// A disk that fills up during a job causes no loss, and is distinguished from a full bucket.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	inMountNamespace(t, func(t *testing.T) {
		home, object, disk := smallHome(t), t.TempDir(), t.TempDir()
		check(t, os.WriteFile(filepath.Join(home, "large"), randomBytes(12<<20), 0o600))
		succeed(t, archiveSpec(), Dirs{Home: home, Object: object})
		check(t, syscall.Mount("none", disk, "tmpfs", 0, "size=8m"))
		t.Cleanup(func() { check(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })

		full := filepath.Join(disk, "object")
		check(t, os.Mkdir(full, 0o700))
		do(t.Context(), t, archiveSpec(), Dirs{Home: home, Object: full}).wantError(t, Unavailable)
		if names := namesIn(t, full); len(names) > 0 {
			t.Errorf("the folder of the archive holds %q", names)
		}

		restored := filepath.Join(disk, "home")
		check(t, os.Mkdir(restored, 0o700))
		spec := restoreSpec(readMeta(t, object))
		do(t.Context(), t, spec, Dirs{Home: restored, Object: object}).wantError(t, DiskFull)

		// A disk can also run out of inodes.
		check(t, syscall.Mount("none", disk, "tmpfs", syscall.MS_REMOUNT, "size=64m,nr_inodes=12"))
		do(t.Context(), t, spec, Dirs{Home: restored, Object: object}).wantError(t, DiskFull)
		if names := namesIn(t, restored); len(names) > 0 {
			t.Errorf("the home holds %q", names)
		}
		check(t, syscall.Mount("none", disk, "tmpfs", syscall.MS_REMOUNT, "size=64m,nr_inodes=1000"))
		succeed(t, spec, Dirs{Home: restored, Object: object})
	})
}

// A job keeps the reserve of a disk free and reports a shortage; what fits above the reserve is
// written.
func TestReserve(t *testing.T) {
	t.Parallel()
	inMountNamespace(t, func(t *testing.T) {
		home, object, disk := smallHome(t), t.TempDir(), t.TempDir()
		check(t, os.WriteFile(filepath.Join(home, "large"), randomBytes(12<<20), 0o600))
		for i := range 200 { // so that the first progress comes early
			check(t, os.WriteFile(filepath.Join(home, fmt.Sprint("small-", i)), nil, 0o600))
		}
		succeed(t, archiveSpec(), Dirs{Home: home, Object: object})
		check(t, syscall.Mount("none", disk, "tmpfs", 0, "size=64m"))
		t.Cleanup(func() { check(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
		free := func() int64 {
			var st unix.Statfs_t
			check(t, unix.Statfs(disk, &st))
			return int64(st.Bavail) * st.Bsize
		}
		put, restored, filler := filepath.Join(disk, "object"), filepath.Join(disk, "home"), filepath.Join(disk, "filler")
		check(t, os.Mkdir(put, 0o700))
		check(t, os.Mkdir(restored, 0o700))

		least := int64(64 << 20)
		watched := func(spec Spec, dirs Dirs, at string, then func()) report {
			stop, stopped := make(chan struct{}), make(chan struct{})
			least = 64 << 20
			go func() {
				defer close(stopped)
				for {
					least = min(least, free())
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
				}
			}()
			r := doJob(t.Context(), t, spec, dirs, func(j *job) {
				j.stage = func(s string) {
					if s == at {
						then()
					}
				}
			})
			close(stop)
			<-stopped
			return r
		}
		keeping := func(spec Spec, share float64) Spec { spec.MinFree = share; return spec }
		full := func(r report, kind ErrorKind, words, left string, reserve int64) {
			t.Helper()
			r.wantError(t, kind)
			if e := r.result.Error; e != nil && !strings.Contains(e.Message, words) {
				t.Errorf("the message is %q", e.Message)
			}
			if names := namesIn(t, left); len(names) > 0 {
				t.Errorf("%s holds %q", left, names)
			}
			if least < reserve {
				t.Errorf("only %d bytes were free at one time, want %d", least, reserve)
			}
		}
		none := func() {}

		// Almost 14 MiB into 64 MiB of which 90 % stay free: nothing is written.
		packing := Dirs{Home: home, Object: put}
		lacking := watched(keeping(archiveSpec(), 0.9), packing, "", none)
		full(lacking, Unavailable, "the disk of the archives is full", put, 63<<20)
		if room := lacking.result.Error.Room; room == nil || room.Needs < 13<<20 || room.Needs > 14<<20 || room.Free < 6<<20 || room.Free > 7<<20 {
			t.Errorf("the archive needs and has %+v", room)
		}
		// It fits compressed.
		text := t.TempDir()
		check(t, os.WriteFile(filepath.Join(text, "zeros"), make([]byte, 12<<20), 0o600))
		succeed(t, keeping(archiveSpec(), 0.9), Dirs{Home: text, Object: put})
		check(t, os.RemoveAll(put))
		check(t, os.Mkdir(put, 0o700))
		if exists(t, filepath.Join(put, archive.MetaKey(ObjectName))) {
			t.Error("there is a .meta")
		}
		restore := restoreSpec(readMeta(t, object))
		unpacking := Dirs{Home: restored, Object: object}
		full(watched(keeping(restore, 0.9), unpacking, "", none), DiskFull, "90.0 % stay free", restored, 63<<20)

		// There is enough space until another program takes it.
		fill := func() { check(t, os.WriteFile(filler, make([]byte, 40<<20), 0o600)) }
		lacking = watched(keeping(archiveSpec(), 0.5), packing, "pack", fill)
		full(lacking, Unavailable, "the disk of the archives is full", put, 10<<20)
		if room := lacking.result.Error.Room; room == nil || room.Needs <= room.Free {
			t.Errorf("the archive needs and has %+v", room)
		}
		check(t, os.Remove(filler))
		full(watched(keeping(restore, 0.5), unpacking, "unpack", fill), DiskFull, "became full in the meantime", restored, 10<<20)
		if !exists(t, filler) {
			t.Error("the disk was not filled")
		}

		// A home with a limit on the same disk: its own space does not count, and that of the disk
		// does. This home has no limit, so the share of the home is 0.
		sharing := func(share float64) Spec { spec := keeping(restore, 0); spec.SharedMinFree = share; return spec }
		shared := unpacking
		shared.Scratch = filepath.Join(disk, "scratch")
		check(t, os.Mkdir(shared.Scratch, 0o700))
		check(t, os.Remove(filler))
		full(watched(sharing(0.9), shared, "", none), SharedDiskFull, "90.0 % stay free", restored, 63<<20)
		full(watched(sharing(0.5), shared, "unpack", fill), SharedDiskFull, "became full in the meantime", restored, 10<<20)
		full(watched(keeping(sharing(0.06), 0.9), shared, "", none), DiskFull, "90.0 % stay free", restored, 10<<20)
		succeed(t, sharing(0.06), shared)
		check(t, os.RemoveAll(restored))
		check(t, os.Mkdir(restored, 0o700))

		// 24 MiB are left, of which about 4 are reserved: it fits.
		succeed(t, keeping(archiveSpec(), 0.06), packing)
		check(t, os.RemoveAll(put))
		check(t, os.Mkdir(put, 0o700))
		succeed(t, keeping(restore, 0.06), unpacking)

		// Less than the reserve is free, so nothing is written.
		before := free()
		full(watched(keeping(archiveSpec(), 0.5), packing, "", none), Unavailable, "the disk of the archives is full", put, before-1<<16)

		// There is space, and few inodes are free.
		check(t, os.Remove(filler))
		check(t, syscall.Mount("none", disk, "tmpfs", syscall.MS_REMOUNT, "size=256m,nr_inodes=2000"))
		check(t, os.RemoveAll(restored))
		check(t, os.Mkdir(restored, 0o700))
		full(watched(keeping(restore, 0.95), unpacking, "", none), DiskFull, "inodes of its disk are available while 95.0 % stay free", restored, 0)
		full(watched(keeping(archiveSpec(), 0.95), packing, "", none), Unavailable, "the disk of the archives is full", put, 0)
	})
}
