package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"codehub/internal/workspace"
)

// fixedCost is the time of a job with almost no content, which is that of its
// container.
type fixedCost struct{ stored, done, restored time.Duration }

// fixedCosts measures the archive and restore of a home of one file.
func (s *storage) fixedCosts(ctx context.Context) (fixedCost, error) {
	if s.fixed != nil {
		return *s.fixed, nil
	}
	h, err := s.newHome(ctx, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "file"), []byte("hello"), 0o644)
	})
	if err != nil {
		return fixedCost{}, err
	}
	if _, err := s.archive(ctx, h); err != nil { // the first job creates the helper image
		return fixedCost{}, err
	}
	var stored, done, restored []time.Duration
	for range s.n {
		syncDisks()
		a, err := s.archive(ctx, h)
		if err != nil {
			return fixedCost{}, err
		}
		stored, done = append(stored, a.stored), append(done, a.done)
		took, _, err := s.restore(ctx, a)
		if err != nil {
			return fixedCost{}, err
		}
		restored = append(restored, took)
	}
	s.fixed = &fixedCost{median(stored), median(done), median(restored)}
	return *s.fixed, nil
}

// jobCost prints the fixed cost of archive and restore, and the time of an
// empty archive.
func (s *storage) jobCost(ctx context.Context) error {
	c, err := s.fixedCosts(ctx)
	if err != nil {
		return err
	}
	worst := max(c.done, c.restored)
	fmt.Printf("fixed cost, with the job's container: archive stored %s, read back %s; restore %s (at most 1 s): %s\n",
		ms(c.stored), ms(c.done), ms(c.restored), verdict(worst <= time.Second))
	var empty []time.Duration
	for range s.n {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		row := workspace.Workspace{ID: workspace.ID(id.String()), Name: "bench", OpID: uuid.NewString()}
		begun := time.Now()
		if _, err := s.bucket.PutEmpty(ctx, row, "bench"); err != nil {
			return err
		}
		empty = append(empty, time.Since(begun))
	}
	fmt.Printf("empty archive: stored and read back %s\n", ms(median(empty)))
	return nil
}

// small compares homes of 100,000 small files.
func (s *storage) small(ctx context.Context) error {
	files, err := envInt("CODEHUB_BENCH_SMALL_FILES", 100_000)
	if err != nil {
		return err
	}
	return s.compare(ctx, fmt.Sprintf("%d small files", files), int64(files)*6000, fillSmall(s.text, files))
}

// mixed compares homes of 4 GiB in large files, half source code and half
// random.
func (s *storage) mixed(ctx context.Context) error {
	mib, err := envInt("CODEHUB_BENCH_MIXED_MIB", 4096)
	if err != nil {
		return err
	}
	return s.compare(ctx, fmt.Sprintf("%d MiB in large files", mib), int64(mib)<<20, fillMixed(s.text, mib))
}

// figures are the measurements of several rounds, codehub's and the rival's.
type figures struct {
	stored, done, restored   []time.Duration
	tarred, untarred         []time.Duration
	packCPU, restoreCPU      []time.Duration
	tarCPU, untarCPU         []time.Duration
	size, rivalSize          int64
	archivePeak, restorePeak int64
}

// compare archives and restores a home of about size bytes with codehub and
// with tar and zstd.
func (s *storage) compare(ctx context.Context, name string, size int64, fill func(dir string) error) error {
	rounds, err := envInt("CODEHUB_BENCH_ROUNDS", 3)
	if err != nil {
		return err
	}
	fixed, err := s.fixedCosts(ctx)
	if err != nil {
		return err
	}
	h, err := s.newHome(ctx, func(dir string) error {
		if err := checkSpace(dir, size*int64(1+2*rounds)); err != nil {
			return err
		}
		if err := checkSpace(s.dir, size*int64(2*rounds)*2/3); err != nil {
			return err
		}
		return fill(dir)
	})
	if err != nil {
		return err
	}
	if err := s.warm(ctx, h); err != nil {
		return err
	}
	var f figures
	for i := range rounds {
		if err := s.round(ctx, h, i%2 == 0, &f); err != nil {
			return err
		}
	}
	f.print(name, fixed)
	return nil
}

// round measures both once. It removes nothing, because a file system is slow
// after large removals.
func (s *storage) round(ctx context.Context, h *home, rivalFirst bool, f *figures) error {
	var ball tarball
	var own archived
	inTurn := func(rival, ours func() error) error {
		if !rivalFirst {
			rival, ours = ours, rival
		}
		syncDisks()
		if err := rival(); err != nil {
			return err
		}
		syncDisks()
		return ours()
	}
	err := inTurn(func() (err error) {
		ball, err = s.tar(ctx, h)
		f.tarred, f.tarCPU, f.rivalSize = append(f.tarred, ball.took), append(f.tarCPU, ball.cpu), ball.size
		return err
	}, func() (err error) {
		own, err = s.archive(ctx, h)
		if err != nil {
			return err
		}
		f.stored, f.done = append(f.stored, own.stored), append(f.done, own.done)
		f.packCPU = append(f.packCPU, own.usage.cpu)
		f.size, f.archivePeak = own.meta.Size, max(f.archivePeak, own.usage.peak)
		return nil
	})
	if err != nil {
		return err
	}
	return inTurn(func() error {
		took, cpu, err := s.untar(ctx, ball)
		f.untarred, f.untarCPU = append(f.untarred, took), append(f.untarCPU, cpu)
		return err
	}, func() error {
		took, used, err := s.restore(ctx, own)
		f.restored, f.restoreCPU = append(f.restored, took), append(f.restoreCPU, used.cpu)
		f.restorePeak = max(f.restorePeak, used.peak)
		return err
	})
}

func (f *figures) print(name string, fixed fixedCost) {
	line := func(what string, ours []time.Duration, fixed time.Duration, rival []time.Duration, least float64) {
		o, r := median(ours), median(rival)
		ratio := float64(r) / float64(max(o-fixed, o/10)) // on a busy machine the difference may be negative
		fmt.Printf("%s, %s: codehub %s, of that %s fixed; tar and zstd %s: %.2f times the throughput (at least %.1f): %s\n",
			name, what, ms(o), ms(fixed), ms(r), ratio, least, verdict(ratio >= least))
	}
	line("archive stored", f.stored, fixed.stored, f.tarred, 0.9)
	line("archive read back", f.done, fixed.done, f.tarred, 0.7)
	line("restore", f.restored, fixed.restored, f.untarred, 0.9)
	fmt.Printf("%s, processor time: archive %s, tar and zstd %s; restore %s, tar and zstd %s\n",
		name, ms(median(f.packCPU)), ms(median(f.tarCPU)), ms(median(f.restoreCPU)), ms(median(f.untarCPU)))
	ratio := float64(f.size) / float64(f.rivalSize)
	fmt.Printf("%s, size: %.1f MB; tar and zstd %.1f MB: %.2f times (at most 1.1): %s\n",
		name, float64(f.size)/1e6, float64(f.rivalSize)/1e6, ratio, verdict(ratio <= 1.1))
	fmt.Printf("%s, peak memory of a job without page cache: archive %d MiB, restore %d MiB (under 256): %s\n",
		name, f.archivePeak>>20, f.restorePeak>>20, verdict(max(f.archivePeak, f.restorePeak) < 256<<20))
}

// checkSpace returns an error if dir has less free space than bytes and a
// tenth.
func checkSpace(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read the free space: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < bytes+bytes/10 {
		return fmt.Errorf("%s needs %d GB of free space and has %d: make the homes smaller with CODEHUB_BENCH_MIXED_MIB and CODEHUB_BENCH_SMALL_FILES",
			dir, (bytes+bytes/10)/1e9, free/1e9)
	}
	return nil
}
