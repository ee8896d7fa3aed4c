package disk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/harness"
)

// A power cut keeps flushed writes and may lose others, and ext4 recovers its
// journal afterwards.
func TestPowerOffKeepsFlushedWrites(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test attaches block devices, which needs root")
	}
	for _, loss := range []Loss{LoseNone, LoseAll, LoseRandom, LoseSuffix} {
		t.Run(loss.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
			must(t, os.Mkdir(mount, 0o755))
			run(t, "truncate", "-s", "256M", image)
			run(t, "mkfs.ext4", "-q", "-E", "nodiscard", image)

			d, err := Attach(image, dir)
			must(t, err)
			must(t, unix.Mount(d.Device, mount, "ext4", 0, ""))
			content := func(i int) []byte { return bytes.Repeat(fmt.Append(nil, "file", i), 20_000) }
			durable, volatile := filepath.Join(mount, "durable"), filepath.Join(mount, "volatile")
			must(t, os.WriteFile(durable, content(1), 0o600))
			run(t, "sync", "-f", durable)
			// Unflushed writes: direct I/O to blocks that the file already
			// has.
			f, err := os.OpenFile(volatile, os.O_RDWR|os.O_CREATE, 0o600)
			must(t, err)
			must(t, f.Truncate(page))
			must(t, unix.Fallocate(int(f.Fd()), 0, 0, page))
			must(t, f.Sync())
			must(t, f.Close())
			for i := range 5 {
				run(t, "dd", "if=/dev/zero", "of="+filepath.Join(mount, fmt.Sprint("later", i)), "bs=4k", "count=64", "oflag=direct", "status=none")
			}
			if s := d.Stats(); s.Unflushed == 0 || s.Flushes == 0 {
				t.Fatalf("direct writes are not in the cache: %+v", s)
			}
			unflushed, lost, err := d.PowerOff(loss, rand.New(rand.NewPCG(1, 2)))
			must(t, err)
			t.Logf("%d page writes not flushed, %d lost", unflushed, lost)
			switch {
			case loss == LoseNone && lost != 0, loss == LoseAll && lost != unflushed, loss == LoseRandom && (lost == 0 || lost == unflushed):
				t.Errorf("loss %s: %d of %d unflushed writes lost", loss, lost, unflushed)
			}
			// The page cache may accept this write, the device must not.
			_ = os.WriteFile(filepath.Join(mount, "after"), content(3), 0o600)
			unmount(t, mount)
			must(t, d.Detach())

			again, err := Attach(image, dir)
			must(t, err)
			must(t, unix.Mount(again.Device, mount, "ext4", 0, ""))
			got, err := os.ReadFile(durable)
			must(t, err)
			if !bytes.Equal(got, content(1)) {
				t.Error("a flushed file was damaged")
			}
			if _, err := os.Stat(filepath.Join(mount, "after")); err == nil {
				t.Error("a write after the power cut survived")
			}
			unmount(t, mount)
			must(t, again.Detach())
			run(t, "e2fsck", "-fn", image)
		})
	}
}

// unmount waits for processes that the tests are starting: until a new process runs its
// program, it has the files open that its parent has.
func unmount(t *testing.T, mount string) {
	t.Helper()
	harness.Eventually(t, "unmount "+mount, func() bool {
		err := unix.Unmount(mount, 0)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
