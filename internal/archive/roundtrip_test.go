package archive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// metaOf returns the .meta that an archive with these figures should have.
func metaOf(s Stats) *Meta {
	m := &Meta{
		CodehubVersion: "test", WorkspaceID: "0190-ws", WorkspaceName: "home", Owner: "alice", ArchiveOpID: "0190-op",
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	m.Describe(s)
	return m
}

func pack(tb testing.TB, home string) ([]byte, *Meta) {
	tb.Helper()
	var b bytes.Buffer
	stats, err := Pack(context.Background(), home, &b, PackOptions{})
	check(tb, err)
	return b.Bytes(), metaOf(stats)
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)

	var b bytes.Buffer
	var seen, calls int64
	packed, err := Pack(t.Context(), home, &b, PackOptions{Progress: func(bytes, entries int64) {
		calls++
		if entries < seen {
			t.Errorf("progress went back from %d to %d entries", seen, entries)
		}
		seen = entries
	}})
	check(t, err)
	if calls == 0 || seen != packed.Entries {
		t.Errorf("progress was reported %d times and ended at %d of %d entries", calls, seen, packed.Entries)
	}
	if diff := cmp.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("packing left traces in the home (-before +after):\n%s", diff)
	}
	if packed.Skipped != archivetest.Skipped || packed.Entries != int64(len(before)) || packed.Size != int64(b.Len()) {
		t.Errorf("stats are %+v; the tree has %d entries", packed, len(before))
	}

	meta := metaOf(packed)
	verified, err := Verify(t.Context(), bytes.NewReader(b.Bytes()), meta, nil)
	check(t, err)
	want := packed
	want.Skipped, want.Fingerprint = 0, ""
	if diff := cmp.Diff(want, verified); diff != "" {
		t.Errorf("Verify counts otherwise (-packed +verified):\n%s", diff)
	}

	restored := filepath.Join(t.TempDir(), "restored")
	check(t, os.Mkdir(restored, 0o700))
	unpacked, err := Unpack(t.Context(), bytes.NewReader(b.Bytes()), restored, UnpackOptions{Expect: meta})
	check(t, err)
	if diff := cmp.Diff(want, unpacked); diff != "" {
		t.Errorf("Unpack counts otherwise (-packed +unpacked):\n%s", diff)
	}
	if diff := cmp.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
		t.Errorf("the restored home differs (-before +after):\n%s", diff)
	}

	again, _ := pack(t, restored)
	if !bytes.Equal(b.Bytes(), again) {
		t.Error("the archive of the restored home differs from the first")
	}
	if a, b := archivetest.Allocated(t, home), archivetest.Allocated(t, restored); b > a+a/10 {
		t.Errorf("the home uses %d bytes of disk, and used %d before", b, a)
	}
}

// GNU tar reads archives, which matters to users without codehub.
func TestGNUTarReadsArchive(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)
	b, meta := pack(t, home)
	name := filepath.Join(t.TempDir(), "home.tar.zst")
	check(t, os.WriteFile(name, b, 0o600))

	list := exec.Command("tar", "--zstd", "--quoting-style=literal", "--null", "-tf", name)
	list.Env = append(os.Environ(), "LC_ALL=C")
	var stderr strings.Builder
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("tar -t: %v: %s", err, stderr.String())
	}
	if n := int64(strings.Count(string(out), "\n")); n < meta.Entries {
		t.Errorf("tar -t lists %d lines for %d entries", n, meta.Entries)
	}

	restored := filepath.Join(t.TempDir(), "restored")
	check(t, os.Mkdir(restored, 0o700))
	extract := exec.Command("tar", "--zstd", "--warning=no-timestamp", "--xattrs", "--xattrs-include=*", "-xpf", name, "-C", restored)
	extract.Env = append(os.Environ(), "LC_ALL=C")
	if out, err := extract.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("tar -x: %v: %s", err, out)
	}
	after := archivetest.Snapshot(t, restored)
	for _, states := range []map[string]archivetest.State{before, after} {
		for name, s := range states {
			s.Atime = "" // which tar does not restore
			states[name] = s
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("tar unpacked different content (-home +tar):\n%s", diff)
	}
}

// Unpack reads an archive that GNU tar made, in one zstd frame.
func TestUnpackReadsGNUTar(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	archivetest.Corpus(t, home)
	check(t, os.RemoveAll(filepath.Join(home, "special"))) // tar keeps FIFOs and devices
	before := archivetest.Snapshot(t, home)
	formats := [][]string{{"--format=posix", "--sparse", "--xattrs", "--xattrs-include=*"}}
	if harness.Verifying() {
		// The strategy of zstd -19 with its search kept short, as most of the corpus is random.
		formats = append(formats, []string{
			"--format=posix", "--sparse", "--sparse-version=1.0", "--xattrs", "--xattrs-include=*",
			"--use-compress-program=zstd -19 --long=24 --zstd=slog=1,clog=12,hlog=12,tlen=4",
		})
	}
	for _, flags := range formats {
		name := filepath.Join(t.TempDir(), "home.tar.zst")
		args := append([]string{"--zstd", "-c", "-C", home, "-f", name, "--sort=name"}, flags...)
		if strings.Contains(flags[len(flags)-1], "program") {
			args = args[1:]
		}
		cmd := exec.Command("tar", append(args, ".")...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("tar -c: %v: %s", err, out)
		}
		f, err := os.Open(name)
		check(t, err)
		restored := t.TempDir()
		_, err = Unpack(t.Context(), f, restored, UnpackOptions{})
		check(t, err)
		check(t, f.Close())
		after := archivetest.Snapshot(t, restored)
		for _, states := range []map[string]archivetest.State{before, after} {
			for name, s := range states {
				s.Atime = ""
				states[name] = s
			}
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("the home of %v differs (-before +after):\n%s", flags, diff)
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	b, stats, err := Empty()
	check(t, err)
	meta := metaOf(stats)
	_, err = Verify(t.Context(), bytes.NewReader(b), meta, nil)
	check(t, err)
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o2751))
	before := archivetest.Snapshot(t, dir)
	stats, err = Unpack(t.Context(), bytes.NewReader(b), dir, UnpackOptions{Expect: meta})
	check(t, err)
	if stats.Entries != 0 {
		t.Errorf("%d entries, want none", stats.Entries)
	}
	if diff := cmp.Diff(before["."].Mode, archivetest.Snapshot(t, dir)["."].Mode); diff != "" {
		t.Errorf("the folder changed:\n%s", diff)
	}
	cmd := exec.Command("tar", "--zstd", "-t")
	cmd.Stdin = bytes.NewReader(b)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("tar -t: %v: %s", err, out)
	}
}

// A file that grows, shrinks or is rewritten while it is read ends the pack.
func TestChangedFile(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(name string) error{
		"grows":     func(name string) error { return os.Truncate(name, 80<<20) },
		"shrinks":   func(name string) error { return os.Truncate(name, 40<<20) },
		"rewritten": func(name string) error { return os.Chtimes(name, time.Now(), time.Unix(1, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			large := filepath.Join(home, "large")
			check(t, os.WriteFile(large, bytes.Repeat([]byte("0123456789abcdef"), 4<<20), 0o600))
			changed := false
			_, err := Pack(t.Context(), home, writerFunc(func(p []byte) (int, error) {
				if !changed { // the first frame is out: the file is being read
					changed = true
					return len(p), change(large)
				}
				return len(p), nil
			}), PackOptions{})
			if !errors.Is(err, ErrChanged) {
				t.Fatalf("err = %v, want ErrChanged", err)
			}
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestPackEndsWithItsWriter(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, "large"), make([]byte, 64<<20), 0o600))
	want := errors.New("disk on fire")
	_, err := Pack(t.Context(), home, writerFunc(func([]byte) (int, error) { return 0, want }), PackOptions{})
	if !errors.Is(err, want) {
		t.Errorf("err = %v, want %v", err, want)
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, "large"), randomBytes(9<<20), 0o600))
	b, meta := pack(t, home)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pack(ctx, home, io.Discard, PackOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Pack: %v", err)
	}
	if _, err := Unpack(ctx, bytes.NewReader(b), t.TempDir(), UnpackOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Unpack: %v", err)
	}
	if _, err := Verify(ctx, bytes.NewReader(b), meta, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify: %v", err)
	}
	// Cancelled in the middle, with a reader that hangs.
	ctx, cancel = context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	go func() {
		w.Write(b[:len(b)/2])
		cancel()
	}()
	if _, err := Unpack(ctx, r, t.TempDir(), UnpackOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Unpack in the middle: %v", err)
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}
