package environ_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace/environ"
)

func TestParse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", environ.MaxValue)
	for _, c := range []struct {
		name, text string
		want       map[string]string
		err        environ.Error
	}{
		{name: "empty", want: map[string]string{}},
		{name: "values", text: "A=b\r\n\n_c1= d = \"e\" \nF=", want: map[string]string{"A": "b", "_c1": ` d = "e" `, "F": ""}},
		{name: "longest value", text: "A=" + long, want: map[string]string{"A": long}},
		{name: "line breaks", text: "A<<END\r\n\r\nb = c\r\n# d\r\nEND\r\nB=1\nC<<x\nx\nD=<<x", want: map[string]string{"A": "\nb = c\n# d", "B": "1", "C": "", "D": "<<x"}},
		{name: "no end", text: "A=1\nB<<END\nsecret\n", err: environ.Error{Reason: environ.NoEnd, Name: "B", Line: 2}},
		{name: "no word", text: "B<< END\nsecret\nEND", err: environ.Error{Reason: environ.NoValue, Line: 1}},
		{name: "carriage return", text: "A=b\rc", err: environ.Error{Reason: environ.BadValue, Name: "A", Line: 1}},
		{name: "long value of lines", text: "A<<END\n" + long + "\n\nEND", err: environ.Error{Reason: environ.Long, Name: "A", Line: 1}},
		{name: "no value", text: "\nA=b\nsecret", err: environ.Error{Reason: environ.NoValue, Line: 3}},
		{name: "bad name", text: "my-secret=1", err: environ.Error{Reason: environ.BadName, Line: 1}},
		{name: "digit first", text: "1A=1", err: environ.Error{Reason: environ.BadName, Line: 1}},
		{name: "space", text: "A =1", err: environ.Error{Reason: environ.BadName, Line: 1}},
		{name: "no name", text: "=1", err: environ.Error{Reason: environ.BadName, Line: 1}},
		{name: "Hangul", text: "이름=1", err: environ.Error{Reason: environ.BadName, Line: 1}},
		{name: "comment", text: "# A=1", err: environ.Error{Reason: environ.BadName, Line: 1}},
		{name: "reserved", text: "PATH=/bin", err: environ.Error{Reason: environ.Reserved, Name: "PATH", Line: 1}},
		{name: "codehub's", text: "A=1\nCODEHUB_X=1", err: environ.Error{Reason: environ.Reserved, Name: "CODEHUB_X", Line: 2}},
		{name: "twice", text: "A=1\nA=1", err: environ.Error{Reason: environ.Twice, Name: "A", Line: 2}},
		{name: "control character", text: "A=\x1b", err: environ.Error{Reason: environ.BadValue, Name: "A", Line: 1}},
		{name: "not UTF-8", text: "A=\xff", err: environ.Error{Reason: environ.BadValue, Name: "A", Line: 1}},
		{name: "long name", text: strings.Repeat("A", environ.MaxName+1) + "=1", err: environ.Error{Reason: environ.LongName, Name: strings.Repeat("A", environ.MaxName+1), Line: 1}},
		{name: "long value", text: "A=" + long + "x", err: environ.Error{Reason: environ.Long, Name: "A", Line: 1}},
		{name: "too large", text: "A=" + long + "\nB=" + long + "\nC=" + long + "\nD=" + long, err: environ.Error{Reason: environ.TooLarge}},
		{name: "too many", text: lines(environ.MaxVariables + 1), err: environ.Error{Reason: environ.TooMany}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := environ.Parse(c.text)
			var e *environ.Error
			if errors.As(err, &e) != (c.err.Reason != "") || e != nil && *e != c.err {
				t.Fatalf("error %#v, want %#v", err, c.err)
			}
			if err == nil && !cmp.Equal(got, c.want) {
				t.Error(cmp.Diff(c.want, got))
			}
		})
	}
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("A" + strings.Repeat("x", i) + "=1\n")
	}
	return b.String()
}

// FuzzParse: what is accepted is allowed, and its lines give the same variables again.
func FuzzParse(f *testing.F) {
	f.Add("A=b\nC= d\t\r\n\nE==")
	f.Add("PATH=1")
	f.Add("A=\u2028x")
	f.Add("A<<END\n-----BEGIN\n\nEND_\nEND\nB<<x\nEND\n\nEND_\nx")
	f.Fuzz(func(t *testing.T, text string) {
		env, err := environ.Parse(text)
		if err != nil {
			var e *environ.Error
			if !errors.As(err, &e) {
				t.Fatalf("%T", err)
			}
			return
		}
		if err := environ.Check(env); err != nil {
			t.Fatalf("%q is accepted: %v", text, err)
		}
		again, err := environ.Parse(environ.Format(env))
		if err != nil || !cmp.Equal(env, again) {
			t.Fatalf("%q again: %q (%v)", env, again, err)
		}
	})
}

func TestMerge(t *testing.T) {
	t.Parallel()
	value := func(s string) *string { return &s }
	from := map[string]string{"A": "1", "B": "2"}
	got, err := environ.Merge(from, map[string]*string{"A": nil, "B": value("3"), "C": value(""), "D": nil})
	if want := map[string]string{"B": "3", "C": ""}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v (%v)", got, err)
	}
	if !cmp.Equal(from, map[string]string{"A": "1", "B": "2"}) {
		t.Errorf("the argument was changed: %v", from)
	}
	for _, name := range []string{"HASHED_PASSWORD", "PASSWORD", "PORT", "HOME", "HOSTNAME", "PATH", "CODEHUB_URL", "CODE_SERVER_HOST"} {
		_, err := environ.Merge(nil, map[string]*string{name: value("secret")})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	if environ.Digest(nil) != "" || environ.Digest(map[string]string{}) != "" {
		t.Error("no variables have a digest")
	}
	seen := map[string]bool{}
	for _, env := range []map[string]string{{"A": "1"}, {"A": "2"}, {"B": "1"}, {"A": "1", "B": "1"}, {"A": ""}} {
		seen[environ.Digest(env)] = true
	}
	if len(seen) != 5 {
		t.Errorf("%d digests of 5 sets", len(seen))
	}
}

func TestHostname(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"demo": "demo", "My Project (2)": "my-project-2", "--a__b--": "a-b", "데모": "workspace", "": "workspace", "데모 3": "3", "café": "caf",
		"a.b": "a-b", "K": "k", strings.Repeat("a", 62) + " b": strings.Repeat("a", 62), strings.Repeat("z", 255): strings.Repeat("z", 63), "..": "workspace",
	} {
		if got := environ.Hostname(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func FuzzHostname(f *testing.F) {
	f.Add("demo")
	f.Add(strings.Repeat("a-", 100))
	f.Add("İ한글 x")
	f.Fuzz(func(t *testing.T, name string) {
		host := environ.Hostname(name)
		if host == "" || len(host) > 63 || strings.HasPrefix(host, "-") || strings.HasSuffix(host, "-") ||
			strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Fatalf("%q: %q", name, host)
		}
		if again := environ.Hostname(host); again != host {
			t.Fatalf("%q: %q, then %q", name, host, again)
		}
	})
}

func TestValidZone(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Asia/Seoul", "UTC", "Etc/GMT+9", "America/Argentina/Buenos_Aires"} {
		if !environ.ValidZone(zone) {
			t.Errorf("%q is refused", zone)
		}
	}
	for _, zone := range []string{"", "Local", "Asia/Nowhere", "../etc/passwd", "/etc/localtime", "Asia/../UTC", "UTC\n", strings.Repeat("A", 65)} {
		if environ.ValidZone(zone) {
			t.Errorf("%q is accepted", zone)
		}
	}
}

// TestFile: a file is read again each time, and an error keeps the last valid content.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "env")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := &environ.File{Path: path}
	if env, err := f.Env(); err == nil || env != nil {
		t.Errorf("a missing file: %v", env)
	}
	write("# the proxy\nA=1\n")
	if env, err := f.Env(); err != nil || !cmp.Equal(env, map[string]string{"A": "1"}) {
		t.Errorf("%v (%v)", env, err)
	}
	write("A=2\n")
	if env, err := f.Env(); err != nil || env["A"] != "2" {
		t.Errorf("%v (%v)", env, err)
	}
	for text, want := range map[string]string{"A=3\n\nsecret\n": "line 3: ", "PATH=secret": "line 1: the name PATH is reserved", strings.Repeat("#", 2<<20): "larger"} {
		write(text)
		env, err := f.Env()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || env["A"] != "2" {
			t.Errorf("%v (%v)", env, err)
		}
	}
	if env, err := (&environ.File{Path: t.TempDir()}).Env(); err == nil {
		t.Errorf("a folder: %v", env)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if env, err := (&environ.File{Path: pipe}).Env(); err == nil {
		t.Errorf("a pipe: %v", env)
	}
	if env, err := new(environ.File).Env(); err != nil || len(env) > 0 {
		t.Errorf("no file: %v (%v)", env, err)
	}
}
