package archive

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/harness"
)

// wideHome is set in the process whose memory is measured: the home it packs.
const wideHome = "CODEHUB_TEST_WIDE_HOME"

// Packing a folder with very many long names uses no more memory than packing a small one.
func TestPackMemoryIsBoundedForWideFolder(t *testing.T) {
	harness.Verify(t)
	if home := os.Getenv(wideHome); home != "" {
		peak := watchLiveHeap(t)
		_, err := Pack(t.Context(), home, io.Discard, PackOptions{})
		check(t, err)
		_, err = Fingerprint(t.Context(), home)
		check(t, err)
		fmt.Printf("peak %d kB\n", peak()>>10)
		return
	}
	t.Parallel()
	// With few names as well, the memory of compression is in use in full. more is in kB.
	const names, few, more = 150_000, 75_000, 8 << 10
	dir, err := os.MkdirTemp("/dev/shm", "codehub-wide-") // creating the files on a disk takes long
	if err != nil {
		dir, err = os.MkdirTemp("", "codehub-wide-")
	}
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	wide, small := filepath.Join(dir, "wide"), filepath.Join(dir, "small")
	for home, n := range map[string]int{wide: names, small: few} {
		check(t, os.Mkdir(home, 0o755))
		fd, err := unix.Open(home, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		check(t, err)
		for i := range n {
			check(t, unix.Mknodat(fd, fmt.Sprintf("%0*d-%s", 10, i*7919%n, strings.Repeat("n", 244)), unix.S_IFREG|0o600, 0))
		}
		unix.Close(fd)
	}
	peak := func(home string) int {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPackMemoryIsBoundedForWideFolder$", "-test.v")
		cmd.Env = append(os.Environ(), wideHome+"="+home, "GOMAXPROCS=2", "GOGC=50")
		out, err := cmd.CombinedOutput()
		found := regexp.MustCompile(`peak (\d+) kB`).FindSubmatch(out)
		if err != nil || found == nil {
			t.Fatalf("%v: %s", err, out)
		}
		kb, err := strconv.Atoi(string(found[1]))
		check(t, err)
		return kb
	}
	least, most := peak(small), peak(wide)
	t.Logf("the peak is %d kB for %d names and %d kB for %d", most, names, least, few)
	if most > least+more {
		t.Errorf("packing %d names uses %d kB, packing %d uses %d kB", names, most, few, least)
	}
}

// watchLiveHeap samples the memory that the garbage collector finds in use, and
// returns a function that ends this and returns the peak in bytes. The memory of
// the process would also count garbage, of which there is more on a busy machine.
func watchLiveHeap(t *testing.T) func() uint64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	peak := make(chan uint64, 1)
	go func() {
		most := uint64(0)
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for tick := time.Tick(time.Millisecond); ctx.Err() == nil; <-tick {
			metrics.Read(live)
			most = max(most, live[0].Value.Uint64())
		}
		peak <- most
	}()
	return func() uint64 {
		cancel()
		return <-peak
	}
}
