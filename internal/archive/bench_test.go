package archive

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"codehub/internal/archive/store"
)

// The default sizes are small. Meaningful figures come from
//
//	go test ./internal/archive -run '^$' -bench . -benchtime 3x -small-files 100000 -mixed-mib 4096
//
// `make bench` measures the same including the storage job.
var (
	smallFiles = flag.Int("small-files", 5000, "how many small files the benchmark's home has")
	mixedMiB   = flag.Int("mixed-mib", 64, "how large the benchmark's home of large files is, half of it source code, half random")
)

func BenchmarkSmallFiles(b *testing.B) {
	home := b.TempDir()
	text := sourceText(b)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range *smallFiles {
		dir := filepath.Join(home, fmt.Sprintf("project-%02d/src/pkg%03d", i/10_000, i/50))
		if i%50 == 0 {
			check(b, os.MkdirAll(dir, 0o755))
		}
		at, n := rnd.IntN(len(text)-16<<10), int(rnd.ExpFloat64()*2500)%(16<<10)
		check(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d.go", i)), text[at:at+n], 0o644))
	}
	compare(b, home)
}

func BenchmarkMixed(b *testing.B) {
	home := b.TempDir()
	text := sourceText(b)
	const file = 32 << 20
	seed := [32]byte{1}
	random := rand.NewChaCha8(seed)
	for i := range max(*mixedMiB*(1<<20)/file, 2) {
		f, err := os.Create(filepath.Join(home, fmt.Sprintf("file-%d", i)))
		check(b, err)
		var r io.Reader = random
		if i%2 == 0 {
			at := (i / 2 * file) % max(len(text)-file, 1)
			r = strings.NewReader(string(text[at:min(at+file, len(text))]))
		}
		_, err = io.Copy(f, io.LimitReader(r, file))
		check(b, err)
		check(b, f.Close())
	}
	compare(b, home)
}

// compare runs both, turn by turn, and reports how many times as fast as tar
// and zstd we are, and how many times as large the archive is.
func compare(b *testing.B, home string) {
	work := b.TempDir()
	folder := store.NewFolder(work)
	check(b, run(b, "sync", "-f", work)) // so that writing the home is not measured
	var ref, own struct{ archive, done, restore, archiveCPU, restoreCPU time.Duration }
	var sizes [2]int64
	for round := 0; b.Loop(); round++ {
		// Keep all archives: ext4 is slow after large deletions.
		theirs := filepath.Join(work, fmt.Sprintf("theirs-%d.tar.zst", round))
		key := fmt.Sprintf("ours-%d.tar.zst", round)
		ours := filepath.Join(work, key)
		measure(&ref.archive, &ref.archiveCPU, func() {
			check(b, run(b, "sh", "-c", `tar -c -C "$0" . | zstd -q -T0 -3 -o "$1" && sync -f "$1"`, home, theirs))
		})
		var stats Stats
		measure(&own.archive, &own.archiveCPU, func() {
			var err error
			stats, err = PackTo(context.Background(), home, PackOptions{}, func(ctx context.Context, r io.Reader) (int64, error) {
				return folder.Put(ctx, key, r)
			})
			check(b, err)
		})
		meta := &Meta{}
		meta.Describe(stats)
		var cpu time.Duration
		measure(&own.done, &cpu, func() {
			r, err := folder.Get(context.Background(), key, 0)
			check(b, err)
			_, err = Verify(context.Background(), r, meta, nil)
			check(b, err)
			check(b, r.Close())
		})
		for i, name := range []string{theirs, ours} {
			st, err := os.Stat(name)
			check(b, err)
			sizes[i] = st.Size()
		}
		out := b.TempDir()
		measure(&ref.restore, &ref.restoreCPU, func() {
			check(b, run(b, "sh", "-c", `zstd -q -d -c "$0" | tar -x -C "$1" && sync -f "$1"`, theirs, out))
		})
		out = b.TempDir()
		check(b, run(b, "sync", "-f", work))
		measure(&own.restore, &own.restoreCPU, func() {
			f, err := os.Open(ours)
			check(b, err)
			_, err = Unpack(context.Background(), f, out, UnpackOptions{Expect: meta})
			check(b, err)
			check(b, f.Close())
		})
		check(b, run(b, "sync", "-f", work))
	}
	own.done += own.archive
	ratio := func(name string, a, z time.Duration) { b.ReportMetric(a.Seconds()/z.Seconds(), name) }
	ratio("x-archive", ref.archive, own.archive)
	ratio("x-archive-verified", ref.archive, own.done)
	ratio("x-restore", ref.restore, own.restore)
	ratio("x-archive-cpu", ref.archiveCPU, own.archiveCPU)
	ratio("x-restore-cpu", ref.restoreCPU, own.restoreCPU)
	b.ReportMetric(float64(sizes[1])/float64(sizes[0]), "x-size")
	b.ReportMetric(own.archive.Seconds()/float64(b.N), "s/archive")
	b.ReportMetric(own.restore.Seconds()/float64(b.N), "s/restore")
	b.ReportMetric(0, "ns/op")
}

// measure adds the duration of f, and the CPU time of this process and its children.
func measure(wall, cpu *time.Duration, f func()) {
	began, used := time.Now(), cpuTime()
	f()
	*wall += time.Since(began)
	*cpu += cpuTime() - used
}

func cpuTime() time.Duration {
	var self, children syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)
	return time.Duration(self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano())
}

// sourceText is a few hundred MiB at most of real source code.
func sourceText(b *testing.B) []byte {
	b.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	check(b, err)
	var text []byte
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(out)), "src"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(name, ".go") {
			return err
		}
		content, err := os.ReadFile(name)
		text = append(text, content...)
		return err
	})
	check(b, err)
	return text
}

func run(tb testing.TB, name string, args ...string) error {
	tb.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
