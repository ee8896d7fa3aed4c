package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
)

// backups measures generations of a home of source code, without jobs and a server.
type backups struct {
	dir, home string
	text      []byte
	files     int
	restic    bool // is installed
	count     int
	took      map[string][]time.Duration
	stored    map[string]int64 // bytes that the last changes took
}

// measureBackups compares backups of a home of 42,000 entries with tar, find and restic.
func measureBackups(ctx context.Context, o options) error {
	entries, err := envInt("CODEHUB_BENCH_BACKUP_ENTRIES", 42_000)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "codehub-bench-backups-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &backups{dir: dir, home: filepath.Join(dir, "home"), files: entries * 50 / 51, took: map[string][]time.Duration{}, stored: map[string]int64{}}
	if b.text, err = sourceText(ctx); err != nil {
		return err
	}
	_, err = exec.LookPath("restic")
	b.restic = err == nil
	bytes, err := b.fill()
	if err != nil {
		return err
	}
	for range max(1, o.n/3) {
		if err := b.round(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("backups of %d files with %.0f MB:\n", b.files, float64(bytes)/1e6)
	b.print("first backup", "first", "tar and zstd", "tar", 1/0.9)
	b.print("unchanged home", "unchanged", "find", "find", 4)
	b.print("1 % changed", "changed", "find", "find", 6)
	b.print("restore", "restore", "zstd and tar", "untar", 1/0.9)
	if b.restic {
		for _, what := range []string{"first", "unchanged", "changed", "restore"} {
			b.print(what, what, "restic", "restic "+what, 1)
		}
	}
	for who, n := range b.stored {
		fmt.Printf("  bytes of 1 %% changed, %s: %.1f MB\n", who, float64(n)/1e6)
	}
	return nil
}

func (b *backups) print(what, ours, who, rival string, most float64) {
	o, r := median(b.took[ours]), median(b.took[rival])
	ratio := float64(o) / float64(r)
	fmt.Printf("  %s: codehub %s, %s %s: %.2f times as long (at most %.2f): %s\n", what, ms(o), who, ms(r), ratio, most, verdict(ratio <= most))
}

// fill makes the home: files of 18 KB on average, 50 to a folder.
func (b *backups) fill() (total int64, err error) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range b.files {
		if i%50 == 0 {
			if err := os.MkdirAll(filepath.Dir(b.name(i)), 0o755); err != nil {
				return 0, err
			}
		}
		n := int(rnd.ExpFloat64()*18_400) % (1 << 20)
		at := rnd.IntN(len(b.text) - n)
		if err := os.WriteFile(b.name(i), b.text[at:at+n], 0o644); err != nil {
			return 0, err
		}
		total += int64(n)
	}
	return total, nil
}

func (b *backups) name(i int) string {
	return filepath.Join(b.home, fmt.Sprintf("project-%02d/src/pkg%03d/file%d.go", i/10_000, i/50, i))
}

// change appends to one of a hundred files.
func (b *backups) change() error {
	for i := range b.files / 100 {
		f, err := os.OpenFile(b.name((i*100+b.count*7)%b.files), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(f, "// change %d\n", b.count)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// timed notes how long a step takes. Each begins with all of it synced.
func (b *backups) timed(what string, step func() error) func() error {
	return func() error {
		unix.Sync()
		begun := time.Now()
		err := step()
		b.took[what] = append(b.took[what], time.Since(begun))
		return err
	}
}

// inOrder measures steps, in another order each round.
func (b *backups) inOrder(steps ...func() error) error {
	for i := range steps {
		if err := steps[(i+b.count)%len(steps)](); err != nil {
			return err
		}
	}
	return nil
}

func (b *backups) round(ctx context.Context) error {
	b.count++
	at := func(name string) string { return filepath.Join(b.dir, fmt.Sprint(name, b.count)) }
	run := func(what, script string) func() error {
		return b.timed(what, func() error {
			_, _, err := shell(ctx, script, at("rival"), b.home, at("restored"))
			return err
		})
	}
	restic := func(what, command string) func() error {
		if !b.restic {
			return func() error { return nil }
		}
		return run("restic "+what, `export RESTIC_PASSWORD=x; restic -q --cache-dir "$0.cache" -r "$0" `+command+` && sync`)
	}
	packs := store.NewFolder(at("bucket"))
	put := func(_ context.Context, name string, content []byte) error {
		b.stored["codehub"] += int64(len(content))
		name = filepath.Join(at("bucket"), name)
		return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, content, 0o644))
	}
	var last *archive.Manifest
	backup := func(what string) func() error {
		return b.timed(what, func() (err error) {
			b.stored["codehub"] = 0
			last, err = archive.Backup(ctx, b.home, archive.ManifestName(time.Now(), what), put, archive.BackupOptions{Former: last, Get: packs.GetRange})
			unix.Sync()
			return err
		})
	}
	find := run("find", `find "$1" -printf '%p %s %T@\n' > /dev/null`)
	if _, _, err := shell(ctx, `if command -v restic; then RESTIC_PASSWORD=x restic -q init --repository-version 2 -r "$0"; fi; tar -c -C "$1" . | cat > /dev/null`,
		at("rival"), b.home); err != nil {
		return err
	}
	if err := b.inOrder(backup("first"), run("tar", `tar -c -C "$1" . | zstd -q -T0 -3 -o "$0.tar.zst" && sync`), restic("first", `backup "$1"`)); err != nil {
		return err
	}
	if err := b.inOrder(backup("unchanged"), find, restic("unchanged", `backup "$1"`)); err != nil {
		return err
	}
	before := du(at("rival"))
	if err := errors.Join(b.change(), b.inOrder(backup("changed"), find, restic("changed", `backup "$1"`))); err != nil {
		return err
	}
	b.stored["restic"] = du(at("rival")) - before
	unpack := b.timed("restore", func() error {
		err := os.Mkdir(at("unpacked"), 0o755)
		if err == nil {
			_, err = last.Unpack(ctx, packs.GetRange, at("unpacked"), archive.UnpackOptions{})
		}
		return err
	})
	return b.inOrder(unpack, run("untar", `mkdir "$2" && zstd -q -dc "$0.tar.zst" | tar -x -C "$2" && sync`), restic("restore", `restore latest --target "$2.restic"`))
}

// du returns the bytes of a folder's files.
func du(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}
