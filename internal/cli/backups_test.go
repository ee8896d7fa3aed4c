package cli

import (
	"strings"
	"testing"
	"time"

	"codehub/api"
)

func TestChooseBackup(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("KST", 9*3600)
	now := time.Date(2026, 11, 30, 21, 0, 0, 0, zone)
	at := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	list := []api.Backup{ // newest first
		{ID: "99999999-0000-4000-8000-000000000000", State: "waiting", Note: "tests pass", CreatedAt: *at(0)},
		{ID: "44444444-0000-4000-8000-000000000000", State: "done", Note: "before the upgrade; tests pass", BegunAt: at(time.Hour), CreatedAt: *at(2 * time.Hour)},
		{ID: "33333333-0000-4000-8000-000000000000", State: "done", BegunAt: at(3 * time.Hour)},
		{ID: "22222222-1111-4000-8000-000000000000", State: "failed", Note: "failed", BegunAt: at(4 * time.Hour)},
		{ID: "22222222-0000-4000-8000-000000000000", State: "done", Note: "tests pass", BegunAt: at(27 * time.Hour)},
		{ID: "11111111-0000-4000-8000-000000000000", State: "done", Note: "2h", BegunAt: at(50 * time.Hour)},
		{ID: "11111111-1000-4000-8000-000000000000", State: "done", Note: "v1", BegunAt: at(51 * time.Hour)},
	}
	for name, want := range map[string]string{
		"": "4444", "33333333-0000-4000-8000-000000000000": "3333", "3333": "3333", "22222222": "2222", "11111111-0": "11111111-0",
		"tests pass": "4444", "before the upgrade": "4444", "before the upgrade; tests pass": "4444", "v1": "11111111-1", "2h": "11111111-0",
		"90m": "3333", "1h": "4444", "2h ago": "3333", "1d": "2222", "2d": "11111111-0", "0": "4444",
		"2026-11-30 20:00": "4444", "2026-11-30T19:59": "3333", "2026-11-30 18:00:00": "3333", "2026-11-29 18:00": "2222", "2026-11-30T09:00:00Z": "3333",
	} {
		if b, err := chooseBackup(list, name, now); err != nil || !strings.HasPrefix(b.ID, want) {
			t.Errorf("%q: %s, want %s (%v)", name, b.ID, want, err)
		}
	}
	for name, want := range map[string]string{
		"1111": "several backups", "9999": "no backup has the id", "failed": "no backup has the id", "tests": "no backup has the id", "3d": "there is no backup of", "2026-11-31 10:00": "no backup has the id", "222": "no backup has the id",
	} {
		if b, err := chooseBackup(list, name, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v", name, b.ID, err)
		}
	}
	if _, err := chooseBackup(list[:1], "", now); err == nil || !strings.Contains(err.Error(), "no backup yet") {
		t.Error(err)
	}
	if n := idLength(list[3:]); n != 10 {
		t.Errorf("ids of %d characters", n)
	}
}

func TestVersionTable(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 21, 0, 0, 0, time.Local)
	text := versionTable([]api.FileVersion{
		{Backup: "33333333-0000-4000-8000-000000000000", At: at, Cause: "schedule", Change: api.FileRemoved, Size: 2048, ModifiedAt: at},
		{Backup: "11111111-0000-4000-8000-000000000000", At: at, Note: "v1", Cause: "request", Change: api.FileAdded, Size: 2048, ModifiedAt: at},
	}, 8)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "R") || !strings.Contains(lines[1], "33333333 ") || !strings.Contains(lines[1], "scheduled") || strings.Contains(lines[1], "2 KiB") ||
		!strings.HasPrefix(lines[2], "A") || !strings.Contains(lines[2], "v1") || !strings.Contains(lines[2], "2 KiB") {
		t.Errorf("the table is\n%s", text)
	}
	if text := versionTable(nil, 8); text != "No backup has this file." {
		t.Error(text)
	}
}
