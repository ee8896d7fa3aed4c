package inside_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
)

// context returns the tar of a folder of the repository.
func (a awaiting) context(t *testing.T, path, dockerfile string) ([]byte, error) {
	t.Helper()
	r, err := a.Context(t.Context(), "project/api", path, dockerfile)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// listed returns a line for each entry of a tar.
func listed(t *testing.T, content []byte) (list []string) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("%+v", h)
		}
		body, err := io.ReadAll(io.LimitReader(r, 100))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%c %o %q %q", h.Typeflag, h.Mode, h.Name, h.Linkname+string(body)))
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// refusedWith fails unless err is the agent's refusal with these words.
func refusedWith(t *testing.T, what string, err error, words string) {
	t.Helper()
	if !errors.Is(err, agent.ErrRefused) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	a, repo := described(t, map[string]string{
		"docker/Dockerfile": "FROM a", "docker/Dockerfile.dockerignore": "app/*\n!app/*/keep\n!app/run\n**/secret\nempty\n", "app/.dockerignore": "*",
		"app/run": "r", "app/x/keep": "k", "app/x/other": "o", "app/y/other": "o", "app.txt": "t", "app/x/deep/keep": "no", "empty/f": "", "secret": "s", "z/secret": "s", "z/\xff\n\\é": "any",
		".codehub-dockerfile": "another",
	})
	must(t, os.Chmod(filepath.Join(repo, "app/run"), 0o750), os.Chmod(filepath.Join(repo, "app/x"), 0o711), os.Symlink("/etc/passwd", filepath.Join(repo, "link")),
		unix.Mkfifo(filepath.Join(repo, "pipe"), 0o600))
	content, err := a.context(t, ".", "docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`0 644 ".codehub-dockerfile" "FROM a"`,
		`0 644 "README" "x"`,
		`5 755 "app/" ""`, `0 750 "app/run" "r"`, `5 711 "app/x/" ""`, `0 644 "app/x/keep" "k"`,
		`0 644 "app.txt" "t"`,
		`5 755 "docker/" ""`, `0 644 "docker/Dockerfile" "FROM a"`, fmt.Sprintf(`0 644 "docker/Dockerfile.dockerignore" %q`, read(t, filepath.Join(repo, "docker/Dockerfile.dockerignore"))),
		`2 777 "link" "/etc/passwd"`,
		`5 755 "z/" ""`, `0 644 "z/\xff\n\\é" "any"`,
	}
	if d := cmp.Diff(want, listed(t, content)); d != "" {
		t.Error(d)
	}
	// The same content has the same bytes, whenever it was written.
	must(t, os.WriteFile(filepath.Join(repo, "README"), []byte("x"), 0o600))
	if again, err := a.context(t, ".", "docker/Dockerfile"); err != nil || !bytes.Equal(content, again) {
		t.Errorf("%d and %d bytes, %v", len(content), len(again), err)
	}
	// The Dockerfile is there although it is not in the context, or is ignored.
	if content, err = a.context(t, "app", "docker/../README"); err != nil || fmt.Sprint(listed(t, content)) != `[0 644 ".codehub-dockerfile" "x"]` {
		t.Errorf("%s, %v", listed(t, content), err)
	}
	// Without a Dockerfile nothing is ignored.
	if content, err = a.context(t, "app/x", ""); err != nil || len(listed(t, content)) != 4 {
		t.Errorf("%s, %v", listed(t, content), err)
	}
	if content, err = a.context(t, "app", ""); err != nil || !strings.Contains(fmt.Sprint(listed(t, content)), ".dockerignore") {
		t.Errorf("%s, %v", listed(t, content), err)
	}
}

func TestContextOfHostileRepository(t *testing.T) {
	t.Parallel()
	a, repo := described(t, map[string]string{"Dockerfile": "FROM a", "long": strings.Repeat("x", agent.MaxDescription+1)})
	must(t, os.WriteFile(filepath.Join(a.home, "secret"), []byte("{secret}"), 0o600), os.Symlink("../../secret", filepath.Join(repo, "out")),
		os.Symlink("/etc", filepath.Join(repo, "etc")), unix.Mkfifo(filepath.Join(repo, "pipe"), 0o600), os.Symlink("Dockerfile", filepath.Join(repo, "within")))
	for _, c := range []struct{ path, dockerfile, words string }{
		{"..", "Dockerfile", "escapes"}, {"/etc", "Dockerfile", "escapes"}, {"etc", "Dockerfile", "escapes"}, {"missing", "Dockerfile", "no such file"}, {"Dockerfile", "", "not a directory"},
		{".", "../../secret", "out of the repository"}, {".", "out", "out of the repository"}, {".", "missing", "does not exist"}, {".", "pipe", "not a regular file"},
		{".", "etc", "out of the repository"}, {".", ".", "not a regular file"}, {".", "long", "1048576 bytes"},
	} {
		_, err := a.context(t, c.path, c.dockerfile)
		refusedWith(t, c.path+" "+c.dockerfile, err, c.words)
	}
	for _, folder := range []string{"", "..", "/etc", "project/api/etc", "project/api/missing"} {
		_, err := a.Context(t.Context(), folder, ".", "")
		refusedWith(t, folder, err, "cannot be opened")
	}
	content, err := a.context(t, ".", "within")
	if list := listed(t, content); err != nil || list[0] != `0 644 ".codehub-dockerfile" "FROM a"` || bytes.Contains(content, []byte("{secret}")) {
		t.Errorf("%s, %v", list, err)
	}
	for _, ignore := range []string{"!", "[", strings.Repeat("x\n", agent.MaxDescription)} {
		must(t, os.WriteFile(filepath.Join(repo, ".dockerignore"), []byte(ignore), 0o644))
		_, err = a.context(t, ".", "Dockerfile")
		refusedWith(t, ignore[:1], err, ".dockerignore")
	}
	must(t, os.Remove(filepath.Join(repo, ".dockerignore")), unix.Mkfifo(filepath.Join(repo, ".dockerignore"), 0o600))
	_, err = a.context(t, ".", "Dockerfile")
	refusedWith(t, "a pipe", err, ".dockerignore")
	must(t, os.Remove(filepath.Join(repo, ".dockerignore")))
	// A context that exceeds a limit is refused.
	must(t, os.WriteFile(filepath.Join(repo, "café-large"), nil, 0o644), os.Truncate(filepath.Join(repo, "café-large"), agent.MaxContextBytes))
	_, err = a.context(t, ".", "Dockerfile")
	refusedWith(t, "a large file", err, "256 MiB")
	must(t, os.Remove(filepath.Join(repo, "café-large")), os.MkdirAll(filepath.Join(repo, strings.Repeat("d/", agent.MaxContextDepth+1)), 0o755))
	_, err = a.context(t, ".", "Dockerfile")
	refusedWith(t, "a deep folder", err, "100 folders")
}

// A context has a limited number of entries, ignored ones not counted.
func TestContextOfManyFiles(t *testing.T) {
	t.Parallel()
	a := awaitIn(t, inMemory(t))
	repo := filepath.Join(a.home, "project", "api")
	must(t, os.MkdirAll(filepath.Join(repo, "many"), 0o755), os.WriteFile(filepath.Join(repo, "Dockerfile"), nil, 0o644))
	for i := range 60_000 {
		must(t, os.Link(filepath.Join(repo, "Dockerfile"), filepath.Join(repo, "many", fmt.Sprint(i))))
	}
	_, err := a.context(t, ".", "Dockerfile")
	refusedWith(t, "60,000 files", err, "50000 files")
	must(t, os.WriteFile(filepath.Join(repo, ".dockerignore"), []byte("many/*\n!many/*7\n"), 0o644))
	content, err := a.context(t, ".", "Dockerfile")
	if n := len(listed(t, content)); err != nil || n != 4+6000 {
		t.Errorf("%d entries, %v", n, err)
	}
}

// A file that grows is cut to its earlier size, and one that gets shorter or vanishes ends the stream.
func TestContextOfChangingFiles(t *testing.T) {
	t.Parallel()
	const size = 32 << 20 // more than the buffers between the two ends have
	change := func(change func(file string) error) ([]byte, error) {
		a, repo := described(t, map[string]string{})
		file := filepath.Join(repo, "b")
		for _, name := range []string{"a", "b", "c"} {
			must(t, os.WriteFile(filepath.Join(repo, name), nil, 0o644))
		}
		must(t, os.Truncate(filepath.Join(repo, "a"), size), os.Truncate(file, size))
		r, err := a.Context(t.Context(), "project/api", ".", "")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		head := make([]byte, size) // the agent has a and not all of b
		if _, err := io.ReadFull(r, head); err != nil {
			t.Fatal(err)
		}
		must(t, change(file))
		rest, err := io.ReadAll(r)
		return slices.Concat(head, rest), err
	}
	growing, err := change(func(file string) error { return os.Truncate(file, 2*size) })
	if list := listed(t, growing); err != nil || len(list) != 4 {
		t.Errorf("%.100q, %v", list, err)
	}
	_, err = change(func(file string) error { return os.Truncate(file, size/4) })
	refusedWith(t, "shorter", err, "got shorter")
	_, err = change(func(file string) error { return os.Remove(filepath.Join(filepath.Dir(file), "c")) })
	refusedWith(t, "removed", err, `"c": no such file`)
}

func TestContextEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	a, repo := described(t, map[string]string{})
	must(t, os.WriteFile(filepath.Join(repo, "a"), nil, 0o644), os.Truncate(filepath.Join(repo, "a"), 32<<20))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := a.Context(ctx, "project/api", ".", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
