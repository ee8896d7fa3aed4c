package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// fixedCost is the time of a job with almost no content, which is that of its
// container.
type fixedCost struct{ stored, done, restored time.Duration }

// fixedCosts measures the archive and restore of a home of one file.
func (s *storage) fixedCosts(ctx context.Context) (c fixedCost, err error) {
	h, err := s.newHome(ctx, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "file"), []byte("hello"), 0o644)
	})
	if err != nil {
		return c, err
	}
	if _, err := s.archive(ctx, h); err != nil { // the first job creates the helper image
		return c, err
	}
	var stored, done, restored []time.Duration
	for range s.n {
		unix.Sync()
		a, err := s.archive(ctx, h)
		if err != nil {
			return c, err
		}
		took, _, err := s.restore(ctx, a)
		if err != nil {
			return c, err
		}
		stored, done, restored = append(stored, a.stored), append(done, a.done), append(restored, took)
	}
	return fixedCost{median(stored), median(done), median(restored)}, nil
}

// jobCost prints the fixed cost of archive and restore.
func (s *storage) jobCost(ctx context.Context) error {
	c, err := s.fixedCosts(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("fixed cost, with the job's container: archive stored %s, read back %s; restore %s (at most 1 s): %s\n",
		ms(c.stored), ms(c.done), ms(c.restored), verdict(max(c.done, c.restored) <= time.Second))
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

// measured are the measurements of several rounds, codehub's and the rival's.
type measured struct {
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
	rounds := min(s.n, 3)
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
	// Read once, so that no measurement includes the first update of access times.
	if _, _, err := shell(ctx, `tar -c -C "$0" . | cat > /dev/null`, h.dir); err != nil {
		return err
	}
	var m measured
	if err := s.rounds(ctx, h, rounds, &m); err != nil {
		return err
	}
	m.print(name, fixed)
	return nil
}

// rounds measures both in turns. It removes nothing, because a file system is slow
// after large removals.
func (s *storage) rounds(ctx context.Context, h *home, rounds int, m *measured) error {
	return inTurns(rounds, 2, func(i int) error {
		unix.Sync()
		if i == 1 {
			ball, err := s.tar(ctx, h)
			if err != nil {
				return err
			}
			took, cpu, err := s.untar(ctx, ball)
			m.tarred, m.tarCPU, m.rivalSize = append(m.tarred, ball.took), append(m.tarCPU, ball.cpu), ball.size
			m.untarred, m.untarCPU = append(m.untarred, took), append(m.untarCPU, cpu)
			return err
		}
		own, err := s.archive(ctx, h)
		if err != nil {
			return err
		}
		took, used, err := s.restore(ctx, own)
		m.stored, m.done, m.packCPU = append(m.stored, own.stored), append(m.done, own.done), append(m.packCPU, own.usage.cpu)
		m.size, m.archivePeak, m.restorePeak = own.meta.Size, max(m.archivePeak, own.usage.peak), max(m.restorePeak, used.peak)
		m.restored, m.restoreCPU = append(m.restored, took), append(m.restoreCPU, used.cpu)
		return err
	})
}

func (f *measured) print(name string, fixed fixedCost) {
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
