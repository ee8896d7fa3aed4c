package storagejob

import (
	"context"
	"testing"
	"testing/synctest"

	"codehub/internal/archive"
	"codehub/internal/archive/archivetest"
	"codehub/internal/archive/transfer"
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
	for _, parts := range []int{10_000, 2} {
		ticket := &transfer.Ticket{PartSize: 105 << 20, Parts: make([]string, parts)}
		j := newJob(&counting{}, Dirs{Home: home})
		j.fit(t.Context(), ticket)
		if ticket.PartSize != 16<<20 {
			t.Errorf("parts of %d bytes for a small home and %d parts", ticket.PartSize, parts)
		}
		if counted := j.report.get().EntriesTotal > 0; counted != (parts == 2) {
			t.Errorf("with %d parts the home was counted: %v", parts, counted)
		}
	}
}
