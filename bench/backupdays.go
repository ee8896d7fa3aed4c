package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

const (
	backupDays = 30
	keepRule   = "24h,7d,4w,6m"
	// resticKeep is the same rule.
	resticKeep = "--keep-hourly 24 --keep-daily 7 --keep-weekly 4 --keep-monthly 6"
)

// days are the two backups of a home of a month.
type days struct {
	dir, home    string
	packs        *store.Folder
	last         *archive.Manifest
	read         time.Time // of the last full read
	count        int
	ours, rivals time.Duration
}

// measureBackupDays compares the backups of a month with restic's. Both back the home up eight times on each working day, and remove
// what the rule does not keep in the evening.
func measureBackupDays(ctx context.Context, _ options) error {
	entries, err := envInt("CODEHUB_BENCH_BACKUP_DAYS_ENTRIES", 4200)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("restic"); err != nil {
		return fmt.Errorf("the figure compares with restic: %w", err)
	}
	dir, err := os.MkdirTemp("", "codehub-bench-days-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	text, err := sourceText(ctx)
	if err != nil {
		return err
	}
	d := &days{dir: dir, home: filepath.Join(dir, "home"), packs: store.NewFolder(filepath.Join(dir, "codehub"))}
	if err := os.Mkdir(filepath.Join(dir, "codehub"), 0o700); err != nil {
		return err
	}
	dev, err := newDeveloper(ctx, d.home, text, entries)
	if err != nil {
		return err
	}
	if err := d.restic(ctx, "init --repository-version 2"); err != nil {
		return err
	}
	first := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC) // a Monday
	begun := du(d.home)
	for i := range backupDays {
		if err := d.day(ctx, dev, first.AddDate(0, 0, i)); err != nil {
			return err
		}
	}
	ours, rival := du(filepath.Join(dir, "codehub")), du(filepath.Join(dir, "restic"))
	ratio := float64(ours) / float64(rival)
	fmt.Printf("backup-days, %d backups in %d days of a home of %.0f MB, %.0f MB at the end:\n", d.count, backupDays, float64(begun)/1e6, float64(du(d.home))/1e6)
	fmt.Printf("  stored: codehub %.1f MB, restic %.1f MB: %.2f times (at most 1.20): %s\n", float64(ours)/1e6, float64(rival)/1e6, ratio, verdict(ratio <= 1.2))
	fmt.Printf("  time: codehub %.1f s, restic %.1f s: %.2f times as long\n", d.ours.Seconds(), d.rivals.Seconds(), float64(d.ours)/float64(d.rivals))
	return nil
}

func (d *days) restic(ctx context.Context, command string) error {
	_, _, err := shell(ctx, `TZ=UTC RESTIC_PASSWORD=x restic -q --cache-dir "$0/cache" -r "$0/restic" `+command, d.dir, d.home)
	return err
}

// day works, if it is a working day.
func (d *days) day(ctx context.Context, dev *developer, day time.Time) error {
	if day.Weekday() == time.Saturday || day.Weekday() == time.Sunday {
		return nil
	}
	if err := dev.morning(ctx, day); err != nil {
		return err
	}
	for hour := 9; hour < 17; hour++ {
		at := day.Add(time.Duration(hour) * time.Hour)
		if err := dev.hour(ctx, at); err != nil {
			return err
		}
		d.count++
		if err := d.turns(func() error { return d.backup(ctx, at) }, func() error {
			return d.restic(ctx, `backup --host bench --time "`+at.Format(time.DateTime)+`" "$1"`)
		}); err != nil {
			return err
		}
	}
	return d.turns(func() error { return d.prune(ctx) }, func() error { return d.restic(ctx, "forget --prune "+resticKeep) })
}

// turns measures both, each of them first in turn.
func (d *days) turns(ours, rival func() error) error {
	timed := func(total *time.Duration, step func() error) func() error {
		return func() error {
			begun := time.Now()
			err := step()
			*total += time.Since(begun)
			return err
		}
	}
	steps := []func() error{timed(&d.ours, ours), timed(&d.rivals, rival)}
	if d.count%2 == 0 {
		slices.Reverse(steps)
	}
	return errors.Join(steps[0](), steps[1]())
}

// backup adds a generation of this time, as codehub pack does.
func (d *days) backup(ctx context.Context, at time.Time) error {
	put := func(ctx context.Context, name string, content []byte) error {
		_, err := d.packs.Put(ctx, name, bytes.NewReader(content))
		return err
	}
	full := at.Sub(d.read) > 7*24*time.Hour
	if full {
		d.read = at
	}
	m, err := archive.Backup(ctx, d.home, archive.ManifestName(at, "bench"), put, archive.BackupOptions{Former: d.last, Get: d.packs.GetRange, FullRead: full})
	d.last = m
	return err
}

// prune removes the generations that are not kept, and the packs that none of the others needs.
func (d *days) prune(ctx context.Context) error {
	keep, err := workspace.ParseKeep(keepRule)
	if err != nil {
		return err
	}
	var names []string
	var times []time.Time
	for o, err := range d.packs.List(ctx, "") {
		if err != nil {
			return err
		}
		if at, is := archive.IsManifest(o.Key); is {
			times = append(times, at)
		}
		names = append(names, o.Key)
	}
	kept, needed := keep.Of(times), map[string]bool{}
	for _, name := range names {
		at, is := archive.IsManifest(name)
		if !is || !slices.Contains(kept, at) {
			continue
		}
		needed[name] = true
		r, err := d.packs.Get(ctx, name, 0)
		if err != nil {
			return err
		}
		m, err := archive.ReadManifest(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
		for pack := range m.Packs() {
			needed[pack] = true
		}
	}
	for _, name := range names {
		if !needed[name] {
			if err := d.packs.Delete(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}
