package archive

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
)

// Any tree is restored unchanged.
func TestRandomTrees(t *testing.T) {
	t.Parallel()
	rounds, most := 0, 10
	if harness.Verifying() {
		most = 40 // the disk is slow, and rapid does 100
	}
	base := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		if rounds++; rounds > most {
			return
		}
		home := filepath.Join(base, fmt.Sprint("home", rounds))
		check(t, os.Mkdir(home, 0o755))
		folders, files := []string{home}, []string{}
		for i := range rapid.IntRange(0, 30).Draw(rt, "entries") {
			dir := rapid.SampledFrom(folders).Draw(rt, "dir")
			name := filepath.Join(dir, fmt.Sprintf("%02d%s", i, rapid.StringMatching(`[^/\x00]{0,60}`).Draw(rt, "name")))
			if len(filepath.Base(name)) > maxName {
				continue
			}
			switch kind := rapid.IntRange(0, 9).Draw(rt, "kind"); {
			case kind < 3:
				check(t, os.Mkdir(name, 0o755))
				folders = append(folders, name)
			case kind == 3:
				check(t, os.Symlink(rapid.StringMatching(`[^\x00]{1,200}`).Draw(rt, "link"), name))
			case kind == 4 && len(files) > 0:
				check(t, os.Link(rapid.SampledFrom(files).Draw(rt, "of"), name))
			default:
				randomFile(t, rt, name)
				files = append(files, name)
			}
		}
		before := archivetest.Snapshot(t, home)
		b, meta := pack(t, home)
		restored := filepath.Join(base, fmt.Sprint("restored", rounds))
		check(t, os.Mkdir(restored, 0o700))
		if _, err := Unpack(t.Context(), bytes.NewReader(b), restored, UnpackOptions{Expect: meta}); err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
			rt.Fatalf("the restored tree differs:\n%s", diff)
		}
	})
}

func randomFile(t *testing.T, rt *rapid.T, name string) {
	f, err := os.Create(name)
	check(t, err)
	defer f.Close()
	size := rapid.SampledFrom([]int64{0, 1, 100, 5000, smallFile, smallFile + 1, 300_000, 5 << 20}).Draw(rt, "size")
	check(t, f.Truncate(size))
	for range rapid.IntRange(0, 4).Draw(rt, "writes") {
		if size > 0 {
			at := rapid.Int64Range(0, size-1).Draw(rt, "at")
			n := rapid.Int64Range(1, min(size-at, 100_000)).Draw(rt, "n")
			_, err := f.WriteAt(bytes.Repeat([]byte{byte(n)}, int(n)), at)
			check(t, err)
		}
	}
	if rapid.Bool().Draw(rt, "attribute") {
		check(t, unix.Fsetxattr(int(f.Fd()), "user.random", rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(rt, "value"), 0))
	}
	check(t, unix.Fchmod(int(f.Fd()), rapid.Uint32Max(0o7777).Draw(rt, "mode")|0o400))
	check(t, f.Sync()) // so that where its data is does not move any more
	when := time.Unix(rapid.Int64Range(0, 1<<32).Draw(rt, "sec"), rapid.Int64Range(0, 999_999_999).Draw(rt, "nsec"))
	check(t, os.Chtimes(name, when, when))
}
