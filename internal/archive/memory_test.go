package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// peakOf is set in the process whose memory is measured: pack or unpack.
const peakOf = "CODEHUB_TEST_PEAK_OF"

// BenchmarkPeakMemory fails if packing or unpacking uses as much memory as a storage job may
// have, on a machine with many cores.
func BenchmarkPeakMemory(b *testing.B) {
	if what := os.Getenv(peakOf); what != "" {
		home, archive, _ := strings.Cut(what, ":")
		measured(b, home, archive)
		return
	}
	dir := b.TempDir()
	home, archive := filepath.Join(dir, "home"), filepath.Join(dir, "archive")
	for i := range 8 {
		check(b, os.MkdirAll(filepath.Join(home, fmt.Sprint(i)), 0o755))
		large := bytes.Repeat(randomBytes(1<<20), 40)
		check(b, os.WriteFile(filepath.Join(home, fmt.Sprint(i), "large"), large, 0o600))
		for j := range 1000 {
			check(b, os.WriteFile(filepath.Join(home, fmt.Sprint(i), fmt.Sprint(j)), large[j:j+20_000], 0o600))
		}
	}
	f, err := os.Create(archive)
	check(b, err)
	_, err = Pack(b.Context(), home, f, PackOptions{})
	check(b, err)
	check(b, f.Close())
	for b.Loop() {
		for _, what := range []string{"pack", "unpack"} {
			arg := home + ":"
			if what == "unpack" {
				arg = filepath.Join(b.TempDir()) + ":" + archive
			}
			cmd := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkPeakMemory$", "-test.benchtime=1x")
			cmd.Env = append(os.Environ(), peakOf+"="+arg, "GOMAXPROCS=16")
			out, err := cmd.CombinedOutput()
			if err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			found := regexp.MustCompile(`peak (\d+) MiB`).FindSubmatch(out)
			if found == nil {
				b.Fatalf("no figure in %s", out)
			}
			mib, err := strconv.Atoi(string(found[1]))
			check(b, err)
			b.ReportMetric(float64(mib), "MiB/"+what)
			if mib >= 256 {
				b.Errorf("%s uses %d MiB at its peak", what, mib)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
}

func measured(b *testing.B, home, archive string) {
	if archive == "" {
		// Pack as a job does, into an upload that buffers a few parts.
		_, err := PackTo(context.Background(), home, PackOptions{}, func(_ context.Context, r io.Reader) (int64, error) {
			const part = 16 << 20
			parts := make([][]byte, 64<<20/part)
			var n int64
			for i := 0; ; i++ {
				if parts[i%len(parts)] == nil {
					parts[i%len(parts)] = make([]byte, part)
				}
				got, err := io.ReadFull(r, parts[i%len(parts)])
				n += int64(got)
				if err != nil {
					return n, nil
				}
			}
		})
		check(b, err)
	} else {
		f, err := os.Open(archive)
		check(b, err)
		_, err = Unpack(context.Background(), f, home, UnpackOptions{})
		check(b, err)
	}
	status, err := os.ReadFile("/proc/self/status")
	check(b, err)
	kib, err := strconv.Atoi(string(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(status)[1]))
	check(b, err)
	fmt.Printf("peak %d MiB\n", kib/1024)
}
