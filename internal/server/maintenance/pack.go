package maintenance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/cli/terminal"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// packCmd adds a generation of a folder to a backup, without a server.
type packCmd struct {
	Dir      string `arg:"" help:"Folder to back up, such as a home."`
	Backup   string `arg:"" help:"Folder of the backup, or one to create."`
	FullRead bool   `name:"full-read" help:"Read files that look unchanged, too."`
	Keep     string `placeholder:"RULE" help:"Remove older generations, such as 24h,7d,4w,6m."`
}

// Help says what is read.
func (packCmd) Help() string {
	return `A file is unchanged if it has the inode, size and times of the last generation; it is not read again, except every 7 days. The folder may be in use: files that change while they are read are named at the end. With --keep, the latest generation of each of that many hours, days, weeks and months is kept. codehub unpack restores a generation.`
}

func (c packCmd) Run(ctx context.Context) error {
	keep := workspace.Keep{}
	if c.Keep != "" {
		var err error
		if keep, err = workspace.ParseKeep(c.Keep); err != nil {
			return err
		}
	}
	if err := outside(c.Dir, c.Backup); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Backup, 0o700); err != nil {
		return err
	}
	lock, err := os.Open(c.Backup)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another codehub pack uses %s: %w", c.Backup, err)
	}
	b := packs{store.NewFolder(c.Backup)}
	former, at, err := b.latest(ctx)
	if err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Second)
	if at.After(now.Add(time.Hour)) {
		return fmt.Errorf("the last generation is of %s, which is in the future: set the clock, or move its manifest elsewhere", at.Format(time.RFC3339))
	}
	if !now.After(at) {
		now = at.Add(time.Second) // names sort by time
	}
	name := archive.ManifestName(now, strings.ToLower(rand.Text()[:8]))
	// What a run that was killed has left.
	if _, err := b.AbortIncomplete(ctx, "", time.Hour, nil); err != nil {
		return err
	}
	opts := archive.BackupOptions{Former: former, Get: b.GetRange, FullRead: c.FullRead || former != nil && former.FullReadDue(now)}
	m, err := archive.Backup(ctx, c.Dir, name, b.put, opts)
	if errors.Is(err, archive.ErrChanged) {
		m, err = archive.Backup(ctx, c.Dir, name, b.put, opts)
	}
	if err != nil {
		return fmt.Errorf("back %s up: %w", c.Dir, err)
	}
	t := m.Totals()
	fmt.Printf("%s has %d entries with %s. %s were stored.\n", name, t.Entries, terminal.Size(t.Bytes), terminal.Size(t.Stored))
	if err := printGaps(m); err != nil {
		return err
	}
	if c.Keep != "" {
		removed, err := b.prune(ctx, keep)
		if err != nil {
			return err
		}
		if removed > 0 {
			fmt.Printf("Older generations removed: %d.\n", removed)
		}
	}
	if n := len(m.Problems()); n > 0 {
		return fmt.Errorf("%d files could not be backed up; all others are", n)
	}
	return nil
}

// outside returns an error if the backup is in the folder that it is of.
func outside(dir, backup string) error {
	at, err := filepath.Abs(dir)
	if err == nil {
		at, err = filepath.EvalSymlinks(at)
	}
	to, absolute := filepath.Abs(backup)
	if err = errors.Join(err, absolute); err != nil {
		return err
	}
	for parent := to; ; parent = filepath.Dir(parent) { // the nearest that exists
		if real, err := filepath.EvalSymlinks(parent); err == nil {
			to = real + strings.TrimPrefix(to, parent)
			break
		}
	}
	if to == at || strings.HasPrefix(to, strings.TrimSuffix(at, "/")+"/") {
		return fmt.Errorf("%s is in %s: choose a folder outside of it", backup, dir)
	}
	return nil
}

// packs is the folder of a backup.
type packs struct{ *store.Folder }

func (b packs) put(ctx context.Context, name string, content []byte) error {
	_, err := b.Put(ctx, name, bytes.NewReader(content))
	return err
}

// manifests returns the names of the generations, sorted.
func (b packs) manifests(ctx context.Context) (names []string, err error) {
	for o, err := range b.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if _, is := archive.IsManifest(o.Key); is {
			names = append(names, o.Key)
		}
	}
	return names, nil
}

// latest returns the last generation and its time, or nil.
func (b packs) latest(ctx context.Context) (m *archive.Manifest, at time.Time, err error) {
	names, err := b.manifests(ctx)
	if err != nil {
		return nil, at, err
	}
	for _, name := range slices.Backward(names) { // they sort by time
		if at, _ = archive.IsManifest(name); !at.IsZero() {
			m, err = b.read(ctx, name)
			return m, at, err
		}
	}
	return nil, at, nil
}

func (b packs) read(ctx context.Context, name string) (*archive.Manifest, error) {
	r, err := b.Get(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m, err := archive.ReadManifest(r)
	if err != nil {
		return nil, fmt.Errorf("read %s, which you may move elsewhere: %w", name, err)
	}
	return m, nil
}

// prune removes the generations that are not kept, and then the packs that none of the others
// needs, also those of a backup that was interrupted. A manifest that was renamed is kept.
func (b packs) prune(ctx context.Context, keep workspace.Keep) (removed int, err error) {
	names, err := b.manifests(ctx)
	if err != nil {
		return 0, err
	}
	var times []time.Time
	for _, name := range names {
		if at, _ := archive.IsManifest(name); !at.IsZero() {
			times = append(times, at)
		}
	}
	kept := keep.Of(times)
	needed := map[string]bool{}
	var old []string
	for _, name := range names {
		if at, _ := archive.IsManifest(name); !at.IsZero() && !slices.Contains(kept, at) {
			old = append(old, name)
			continue
		}
		m, err := b.read(ctx, name)
		if err != nil {
			return 0, err
		}
		for pack := range m.Packs() {
			needed[pack] = true
		}
	}
	for _, name := range old {
		if err := b.Delete(ctx, name); err != nil {
			return removed, err
		}
		removed++
	}
	for o, err := range b.List(ctx, "packs/") {
		if err != nil {
			return removed, err
		}
		if archive.IsPack(o.Key) && !needed[o.Key] {
			if err := b.Delete(ctx, o.Key); err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

// printGaps names the files that changed while they were backed up, and those that could not be read.
func printGaps(m *archive.Manifest) error {
	if n := m.Totals().Changed; n > 0 {
		fmt.Fprintf(os.Stderr, "%d files changed while they were backed up:\n", n)
		for e, err := range m.Entries() {
			if err != nil {
				return err
			}
			if e.Changed {
				fmt.Fprintf(os.Stderr, "  %q\n", e.Name)
			}
		}
	}
	for _, p := range m.Problems() {
		fmt.Fprintf(os.Stderr, "%q could not be backed up: %s\n", p.Name, p.Reason)
	}
	return nil
}
