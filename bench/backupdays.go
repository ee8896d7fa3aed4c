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
	compactions  int
	moved        int64 // bytes that they wrote
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
	if err := d.report(ctx); err != nil {
		return err
	}
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

// put stores an object.
func (d *days) put(ctx context.Context, name string, content []byte) error {
	_, err := d.packs.Put(ctx, name, bytes.NewReader(content))
	return err
}

// backup adds a generation of this time, as codehub pack does.
func (d *days) backup(ctx context.Context, at time.Time) error {
	full := at.Sub(d.read) > 7*24*time.Hour
	if full {
		d.read = at
	}
	m, err := archive.Backup(ctx, d.home, archive.ManifestName(at, "bench"), d.put, archive.BackupOptions{Former: d.last, Get: d.packs.GetRange, FullRead: full})
	d.last = m
	return err
}

// prune removes the generations that are not kept, moves what is needed of packs that are mostly unused, and removes
// the packs that no generation needs.
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
			names = append(names, o.Key)
			times = append(times, at)
		}
	}
	kept := keep.Of(times)
	for i, at := range times {
		if !slices.Contains(kept, at) {
			if err := d.packs.Delete(ctx, names[i]); err != nil {
				return err
			}
		}
	}
	if err := d.compact(ctx); err != nil {
		return err
	}
	generations, err := d.generations(ctx)
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for _, m := range generations {
		for pack := range m.Packs() {
			needed[pack] = true
		}
	}
	for o, err := range d.packs.List(ctx, "packs/") {
		if err == nil && !needed[o.Key] {
			err = d.packs.Delete(ctx, o.Key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// generations reads all manifests, by their names.
func (d *days) generations(ctx context.Context) (map[string]*archive.Manifest, error) {
	all := map[string]*archive.Manifest{}
	for o, err := range d.packs.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if _, is := archive.IsManifest(o.Key); !is {
			continue
		}
		r, err := d.packs.Get(ctx, o.Key, 0)
		if err != nil {
			return nil, err
		}
		m, err := archive.ReadManifest(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		all[o.Key] = m
	}
	return all, nil
}

// compact does what the leader does with kept generations.
func (d *days) compact(ctx context.Context) error {
	generations, err := d.generations(ctx)
	if err != nil {
		return err
	}
	var usage archive.Usage
	for _, m := range generations {
		if err := usage.Add(m); err != nil {
			return err
		}
	}
	c := usage.Compact(1 << 30)
	if c == nil {
		return nil
	}
	d.compactions++
	err = c.Store(ctx, fmt.Sprintf("compaction-%d", d.compactions), d.packs.GetRange, func(ctx context.Context, name string, content []byte) error {
		d.moved += int64(len(content))
		return d.put(ctx, name, content)
	})
	if err != nil {
		return err
	}
	for name, m := range generations {
		if !c.Affects(m) {
			continue
		}
		rewritten, content, err := c.Rewrite(m)
		if err == nil {
			d.moved += int64(len(content))
			err = d.put(ctx, name, content)
		}
		if err != nil {
			return err
		}
		if d.last != nil && m.Digest() == d.last.Digest() {
			d.last = rewritten
		}
	}
	return nil
}

// report prints what the bytes are.
func (d *days) report(ctx context.Context) error {
	generations, err := d.generations(ctx)
	if err != nil {
		return err
	}
	var usage archive.Usage
	manifests := int64(0)
	for _, m := range generations {
		if err := usage.Add(m); err != nil {
			return err
		}
		manifests += m.Size()
	}
	packs, size, needed := usage.Size()
	fmt.Printf("  of which %d manifests %.1f MB, %d packs %.1f MB, with %.1f MB that are not needed; %d compactions wrote %.1f MB\n",
		len(generations), float64(manifests)/1e6, packs, float64(size)/1e6, float64(size-needed)/1e6, d.compactions, float64(d.moved)/1e6)
	return nil
}
