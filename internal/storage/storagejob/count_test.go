package storagejob

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/storage/transfer"
	"codehub/internal/testing/archivetest"
)

// The count equals what is packed, except for the ends of sparse files and a few bytes of files
// with several names.
func TestCountHome(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)
	c, err := countHome(t.Context(), home, true)
	check(t, err)
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("counting left traces in the home:\n%s", diff)
	}
	stats, err := archive.Pack(t.Context(), home, &counting{}, archive.PackOptions{})
	check(t, err)
	if c.Entries != stats.Entries {
		t.Errorf("%d entries were counted, %d packed", c.Entries, stats.Entries)
	}
	if off := c.Bytes - stats.Bytes; off < -stats.Bytes/1000 || off > stats.Bytes/1000 {
		t.Errorf("%d bytes were counted, %d packed", c.Bytes, stats.Bytes)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := countHome(ctx, home, false); err == nil {
		t.Error("counting continues after it was cancelled")
	}
}

type counting struct{ n int64 }

func (c *counting) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// A job that packs for a while reports totals; a short one does not count.
func TestTotals(t *testing.T) {
	t.Parallel()
	home := smallHome(t)
	want, err := countHome(t.Context(), home, false)
	check(t, err)
	synctest.Test(t, func(t *testing.T) {
		j := newJob(&counting{}, Dirs{Home: home})
		ctx, cancel := context.WithTimeout(t.Context(), countAfter-1)
		j.count(ctx)
		cancel()
		if p := j.report.get(); p != (Progress{}) {
			t.Errorf("too early: %+v", p)
		}
		j.count(t.Context())
		if p := j.report.get(); p.BytesTotal != want.Bytes || p.EntriesTotal != want.Entries {
			t.Errorf("totals are %+v, want %+v", p, want)
		}
	})
}

// The size of the parts depends on the home, not on the ticket.
func TestFit(t *testing.T) {
	t.Parallel()
	home := smallHome(t)
	var st unix.Statfs_t
	check(t, unix.Statfs(home, &st))
	for _, parts := range []int{10_000, 2} {
		ticket := &transfer.Ticket{PartSize: 105 << 20, Parts: make([]string, parts)}
		j := newJob(&counting{}, Dirs{Home: home})
		j.fit(t.Context(), ticket)
		if ticket.PartSize != 16<<20 {
			t.Errorf("parts of %d bytes for a small home and %d parts", ticket.PartSize, parts)
		}
		if counted := j.report.get().EntriesTotal > 0; counted != (parts == 2 || sharesBlocks(&st)) {
			t.Errorf("with %d parts the home was counted: %v", parts, counted)
		}
	}
}

// Copies that share their blocks make a home that is larger than the used space of its disk.
func TestFitHomeWithSharedBlocks(t *testing.T) {
	t.Parallel()
	inMountNamespace(t, func(t *testing.T) {
		image, home := filepath.Join(t.TempDir(), "image"), t.TempDir()
		for _, command := range [][]string{
			{"truncate", "-s", "320M", image}, {"mkfs.xfs", "-q", "-m", "reflink=1", image}, {"mount", "-o", "loop", image, home},
		} {
			out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v: %s (scripts/setup.sh installs what is missing)", command, err, out)
			}
		}
		t.Cleanup(func() { check(t, unix.Unmount(home, unix.MNT_DETACH)) })
		first, err := os.Create(filepath.Join(home, "first"))
		check(t, err)
		defer first.Close()
		const size, copies = 16 << 20, 60
		_, err = first.Write(make([]byte, size))
		check(t, err)
		for i := range copies {
			f, err := os.Create(filepath.Join(home, strconv.Itoa(i)))
			check(t, err)
			check(t, unix.IoctlFileClone(int(f.Fd()), int(first.Fd())))
			check(t, f.Close())
		}
		const parts = 20
		ticket := &transfer.Ticket{PartSize: 105 << 20, Parts: make([]string, parts)}
		newJob(&counting{}, Dirs{Home: home}).fit(t.Context(), ticket)
		if most := ticket.PartSize * parts; most < size*(copies+1) {
			t.Errorf("parts of %d bytes allow %d bytes for a home of %d", ticket.PartSize, most, size*(copies+1))
		}
	})
}

// An archive that is too large is not packed again.
func TestTooLargeIsNotRetried(t *testing.T) {
	t.Parallel()
	if kind := kindOf(t.Context(), fmt.Errorf("archive the home: %w", transfer.ErrTooLarge)); kind != Unrestorable {
		t.Errorf("its kind is %q", kind)
	}
}
