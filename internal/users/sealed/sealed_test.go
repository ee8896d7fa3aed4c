package sealed_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"codehub/internal/base/setting"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	r := must(sealed.OpenOrCreate(filepath.Join(t.TempDir(), "secret.key")))(t)
	for _, plain := range []string{"", "hunter2", strings.Repeat("x", 64<<10)} {
		a, b := must(r.Seal([]byte(plain), "secret ann"))(t), must(r.Seal([]byte(plain), "secret ann"))(t)
		if bytes.Equal(a, b) || plain != "" && bytes.Contains(a, []byte(plain)) {
			t.Errorf("%.10q is sealed as %.100x", plain, a)
		}
		if got := must(r.Open(a, "secret ann"))(t); string(got) != plain {
			t.Errorf("%.10q is opened as %.10q", plain, got)
		}
		if sealed.KeyOf(a) != r.Keys()[0] {
			t.Errorf("sealed with %q, not %q", sealed.KeyOf(a), r.Keys())
		}
		for i := range min(len(a), 200) {
			changed := bytes.Clone(a)
			changed[i] ^= 1
			if _, err := r.Open(changed, "secret ann"); err == nil {
				t.Fatalf("opened with another byte %d", i)
			}
			if _, err := r.Open(a[:i], "secret ann"); err == nil {
				t.Fatalf("opened with %d bytes alone", i)
			}
		}
	}
	a := must(r.Seal([]byte("hunter2"), "secret ann"))(t)
	if got, err := r.Open(a, "secret bob"); err == nil {
		t.Errorf("opened for another owner: %q", got)
	}
}

// A key that is added counts at once, also in another process that has the file open.
func TestAddedKeyEncrypts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret.key")
	server, command := must(sealed.OpenOrCreate(file))(t), must(sealed.Open(file))(t)
	before := must(server.Seal([]byte("one"), "x"))(t)
	id := must(command.Add())(t)
	after := must(command.Seal([]byte("two"), "x"))(t)
	if sealed.KeyOf(after) != id || sealed.KeyOf(before) == id {
		t.Fatalf("sealed with %s and %s; the new key is %s", sealed.KeyOf(before), sealed.KeyOf(after), id)
	}
	for value, want := range map[string]string{string(before): "one", string(after): "two"} {
		if got := must(server.Open([]byte(value), "x"))(t); string(got) != want {
			t.Errorf("%q", got)
		}
	}
	if later := must(server.Seal([]byte("three"), "x"))(t); sealed.KeyOf(later) != id {
		t.Errorf("the server still seals with %s", sealed.KeyOf(later))
	}
	if info := must(os.Stat(file))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if left := must(os.ReadDir(filepath.Dir(file)))(t); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Keys that several processes add at the same moment are all in the file.
func TestKeysAddedAtOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret.key")
	must(sealed.OpenOrCreate(file))(t)
	var all sync.WaitGroup
	for range 8 {
		r := must(sealed.Open(file))(t)
		all.Go(func() {
			if _, err := r.Add(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if text := string(must(os.ReadFile(file))(t)); strings.Count(text, "\n") != 9 {
		t.Errorf("%d keys", strings.Count(text, "\n"))
	}
}

// A removed key is named by its id alone.
func TestRemovedKeyIsNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret.key")
	r := must(sealed.OpenOrCreate(file))(t)
	value := must(r.Seal([]byte("one"), "x"))(t)
	_, line := sealed.NewKey()
	if err := os.WriteFile(file, []byte("# a comment\n\n"+line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := must(sealed.Open(file))(t)
	if _, err := other.Open(value, "x"); err == nil || !strings.Contains(err.Error(), `the key "`+sealed.KeyOf(value)+`" is not in `+file) {
		t.Errorf("%v", err)
	}
}

// Servers that start at once on one data folder have the same key.
func TestCreatedOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret.key")
	var wait sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wait.Go(func() {
			if r, err := sealed.OpenOrCreate(file); err != nil {
				t.Error(err)
			} else {
				ids[i] = r.Keys()[0]
			}
		})
	}
	wait.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("keys %q", ids)
		}
	}
}

func TestWithoutFile(t *testing.T) {
	t.Parallel()
	r := must(sealed.Open(""))(t)
	_, sealing := r.Seal([]byte("x"), "x")
	_, opening := r.Open([]byte("x"), "x")
	for _, err := range []error{sealing, opening} {
		if workspace.CodeOf(err) != workspace.CodeNotSupported || !strings.Contains(err.Error(), "An administrator has to set CODEHUB_SECRET_KEY_FILE.") {
			t.Errorf("%v", err)
		}
	}
}

// Errors name the line, and contain nothing of a key.
func TestWrongFiles(t *testing.T) {
	t.Parallel()
	_, line := sealed.NewKey()
	for text, want := range map[string]string{
		"":                           "it has no key",
		"# nothing\n":                "it has no key",
		"hunter2hunter2":             "line 1 does not begin with an id",
		line + "\nhunter2 x:hunter2": "line 2 does not begin with an id",
		"a:hunter2":                  "line 1 has no base64 of 32 bytes",
		line + "\n" + line:           "line 2 has the id",
		strings.Repeat("#", 1<<17):   "is too large",
	} {
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := sealed.Settings{File: file}
		err := s.Resolve()
		if p := (*setting.Problem)(nil); !errors.As(err, &p) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	s := sealed.Settings{File: filepath.Join(t.TempDir(), "none")}
	if err := s.Resolve(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
}
