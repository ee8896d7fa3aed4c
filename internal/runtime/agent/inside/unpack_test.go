package inside_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
)

// serveHome starts an agent with this home and returns a client of it.
func serveHome(t *testing.T, home string) *agent.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := inside.NewServer(inside.Config{Secret: secret, Version: "test", Home: home, Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return &agent.Client{Addr: l.Addr().String(), Secret: secret}
}

// entries writes a tar of entries as a part of a backup has them.
func entries(t *testing.T, list ...tar.Header) func(io.Writer) error {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		content := h.Linkname
		switch h.Typeflag {
		case 0:
			h.Typeflag, h.Size, h.Linkname = tar.TypeReg, int64(len(content)), ""
		default:
			content = ""
		}
		h.Format, h.Uid, h.Gid = tar.FormatPAX, 1000, 1000
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return func(to io.Writer) error { _, err := to.Write(b.Bytes()); return err }
}

// file is the tar of a file with this content.
func file(t *testing.T, content string) func(io.Writer) error {
	return entries(t, tar.Header{Name: "./" + archive.PartName, Linkname: content, Mode: 0o640})
}

// tree is the tar of a folder that cannot be written to.
func tree(t *testing.T) func(io.Writer) error {
	return entries(t, tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o555, ModTime: time.Unix(1e9, 0)},
		tar.Header{Name: "./a", Linkname: "content", Mode: 0o600},
		tar.Header{Name: "./link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", Mode: 0o777},
		tar.Header{Name: "./sub/", Typeflag: tar.TypeDir, Mode: 0o500},
		tar.Header{Name: "./sub/b", Typeflag: tar.TypeLink, Linkname: "./a", Mode: 0o600})
}

// names lists all in a home.
func names(t *testing.T, home string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(home, func(p string, _ fs.DirEntry, err error) error {
		if p != home {
			list = append(list, strings.TrimPrefix(p, home+"/"))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return list
}

func content(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// wantStatus fails the test unless an agent has refused with this status.
func wantStatus(t *testing.T, err error, status int) {
	t.Helper()
	var refused *agent.RefusedError
	if !errors.As(err, &refused) || refused.Status != status {
		t.Errorf("the error is %v, want one with the status %d", err, status)
	}
}

func TestUnpackFile(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := serveHome(t, home)
	to := "new/folder/" + strings.Repeat("n", 250) + "\xff\n\\"
	if kept, err := c.Unpack(t.Context(), to, false, file(t, "first")); err != nil || kept != "" {
		t.Fatalf("kept %q, %v", kept, err)
	}
	_, err := c.Unpack(t.Context(), to, false, file(t, "second"))
	wantStatus(t, err, http.StatusConflict)
	if got := content(t, filepath.Join(home, to)); got != "first" {
		t.Errorf("an error has changed the file to %q", got)
	}
	var all []string
	for _, next := range []string{"second", "third"} { // in the same second
		kept, err := c.Unpack(t.Context(), to, true, file(t, next))
		if err != nil || !strings.Contains(kept, ".before-restore-") || len(kept) > 255 {
			t.Fatalf("kept %q, %v", kept, err)
		}
		all = append(all, content(t, filepath.Join(home, "new/folder", kept)))
	}
	if got := content(t, filepath.Join(home, to)); got != "third" || !slices.Equal(all, []string{"first", "second"}) {
		t.Errorf("the file is %q, and the kept ones are %q", got, all)
	}
	info, err := os.Stat(filepath.Join(home, to))
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got := names(t, home); len(got) != 5 {
		t.Errorf("the home has %q", got)
	}
}

func TestUnpackFolder(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := serveHome(t, home)
	for range 2 {
		if _, err := c.Unpack(t.Context(), "tree", true, tree(t)); err != nil {
			t.Fatal(err)
		}
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Lstat(filepath.Join(home, "tree/a"), &a), unix.Lstat(filepath.Join(home, "tree/sub/b"), &b)); err != nil || a.Ino != b.Ino {
		t.Errorf("the hard link is another file: %v", err)
	}
	if info, err := os.Stat(filepath.Join(home, "tree")); err != nil || info.Mode().Perm() != 0o555 || info.ModTime().Unix() != 1e9 {
		t.Errorf("the folder is %v, %v", info, err)
	}
	if a.Uid != uint32(os.Getuid()) {
		t.Errorf("the file belongs to %d", a.Uid)
	}
	if got := names(t, home); len(got) != 10 {
		t.Errorf("the home has %q", got)
	}
}

// A name that is no file is replaced without being opened, and kept.
func TestUnpackReplacesAnything(t *testing.T) {
	t.Parallel()
	outside, home := t.TempDir(), t.TempDir()
	c := serveHome(t, home)
	if err := errors.Join(unix.Mkfifo(filepath.Join(home, "fifo"), 0o600), os.Symlink(outside, filepath.Join(home, "link")), os.Symlink("nowhere", filepath.Join(home, "broken")),
		os.Mkdir(filepath.Join(home, "folder"), 0o500)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "link", "broken", "folder"} {
		before, err := os.Lstat(filepath.Join(home, name))
		if err != nil {
			t.Fatal(err)
		}
		kept, err := c.Unpack(t.Context(), name, true, file(t, "new"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if after, err := os.Lstat(filepath.Join(home, kept)); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s was not kept: %v", name, err)
		}
		if content(t, filepath.Join(home, name)) != "new" {
			t.Errorf("%s was not replaced", name)
		}
	}
	if got := names(t, outside); len(got) > 0 {
		t.Errorf("%q are outside of the home", got)
	}
}

func TestUnpackStaysInHome(t *testing.T) {
	t.Parallel()
	outside, home := t.TempDir(), t.TempDir()
	c := serveHome(t, home)
	if err := errors.Join(os.Symlink(outside, filepath.Join(home, "out")), os.Mkdir(filepath.Join(home, "in"), 0o755), os.Symlink("in", filepath.Join(home, "alias")),
		os.WriteFile(filepath.Join(home, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	before := names(t, home)
	for _, to := range []string{"", ".", "..", "../x", "/etc/x", "a/../x", "a//x", "a/", "out/x", "out/new/x", "alias/x", "file/x", "new/" + strings.Repeat("n", 256) + "/x", "zero\x00"} {
		_, err := c.Unpack(t.Context(), to, true, file(t, "new"))
		wantStatus(t, err, http.StatusUnprocessableEntity)
	}
	if after := names(t, home); !slices.Equal(before, after) || len(names(t, outside)) > 0 {
		t.Errorf("the home has %q; outside of it are %q", after, names(t, outside))
	}
}

// A program exchanges a folder on the way with a link out of the home all the time.
func TestUnpackLosesNoRace(t *testing.T) {
	t.Parallel()
	outside, home := t.TempDir(), t.TempDir()
	c := serveHome(t, home)
	if err := errors.Join(os.Mkdir(filepath.Join(home, "way"), 0o755), os.Symlink(outside, filepath.Join(home, "link"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var racing sync.WaitGroup
	racing.Go(func() {
		for ctx.Err() == nil {
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(home, "way"), unix.AT_FDCWD, filepath.Join(home, "link"), unix.RENAME_EXCHANGE)
		}
	})
	done := 0
	for i := range 200 {
		if _, err := c.Unpack(t.Context(), fmt.Sprintf("way/%d", i), true, file(t, "new")); err == nil {
			done++
		}
	}
	cancel()
	racing.Wait()
	if got := names(t, outside); len(got) > 0 {
		t.Errorf("%d files are outside of the home", len(got))
	}
	if got := names(t, home); len(got) != 2+done {
		t.Errorf("%d files were put in place, and the home has %q", done, got)
	}
}

// What is not put in place leaves nothing in the home.
func TestUnpackLeavesNothing(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := serveHome(t, home)
	broken := errors.New("the bucket has failed")
	if _, err := c.Unpack(t.Context(), "new/a", true, func(w io.Writer) error {
		return errors.Join(broken, tree(t)(w))
	}); !errors.Is(err, broken) {
		t.Errorf("a tar that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Unpack(ctx, "other/b", true, func(w io.Writer) error {
		cancel()
		return tree(t)(w)
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled request: %v", err)
	}
	for what, tar := range map[string]func(io.Writer) error{
		"garbage":        func(w io.Writer) error { _, err := io.CopyN(w, neverEnding('x'), 8<<20); return err },
		"no tar":         func(io.Writer) error { return nil },
		"two files":      entries(t, tar.Header{Name: "./content"}, tar.Header{Name: "./other"}),
		"a device":       entries(t, tar.Header{Name: "./content", Typeflag: tar.TypeChar}),
		"a name outside": entries(t, tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "./../x"}),
	} {
		_, err := c.Unpack(t.Context(), "third/c", true, tar)
		if err == nil {
			t.Errorf("%s was put in place", what)
		}
		wantStatus(t, err, http.StatusUnprocessableEntity)
	}
	// The agent may notice the end of a connection later than its server.
	harness.Await(t, 10*time.Second, "an empty home", func() []string { return names(t, home) }, func(list []string) bool { return len(list) == 0 })
}

// neverEnding repeats a byte.
type neverEnding byte

// Read implements io.Reader.
func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func TestUnpackOnFullDisk(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := unix.Mount("tmpfs", home, "tmpfs", 0, "size=4m,nr_inodes=100"); err != nil {
		t.Fatalf("mount a tmpfs: %v (the tests run as root)", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(home, unix.MNT_DETACH) })
	c := serveHome(t, home)
	if err := os.WriteFile(filepath.Join(home, "mine"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	large := entries(t, tar.Header{Name: "./content", Linkname: strings.Repeat("x", 16<<20), Mode: 0o600})
	many := []tar.Header{{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700}}
	for i := range 200 {
		many = append(many, tar.Header{Name: fmt.Sprintf("./%03d", i), Linkname: "x", Mode: 0o600})
	}
	for _, tar := range []func(io.Writer) error{large, entries(t, many...)} {
		for _, to := range []string{"mine", "new/folder/file"} {
			_, err := c.Unpack(t.Context(), to, true, tar)
			wantStatus(t, err, http.StatusInsufficientStorage)
		}
	}
	if got := names(t, home); !slices.Equal(got, []string{"mine"}) || content(t, filepath.Join(home, "mine")) != "mine" {
		t.Errorf("the home has %q", got)
	}
}
