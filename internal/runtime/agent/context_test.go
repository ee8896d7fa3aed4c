package agent_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http/httputil"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
)

// tarOf returns a tar whose entries have these headers, and zeros as their content.
func tarOf(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write(make([]byte, h.Size))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func dir(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}
}
func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
func link(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "/etc", Mode: 0o777}
}

// contextOf returns the context that the server reads from an agent with this response.
func contextOf(t *testing.T, body string) ([]byte, error) {
	t.Helper()
	r, err := client(t, agenttest.Answers{agent.PathContext: agenttest.Raw("HTTP/1.1 200 OK\r\n" + body)}).Context(t.Context(), "project/api", ".", "")
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// The server passes on only entries that ContextWriter accepts, also of a hostile agent.
func TestHostileContext(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 5000)
	for name, c := range map[string]struct {
		sent  []tar.Header
		words string // of the refusal; empty: none
	}{
		"all kinds":              {[]tar.Header{file(agent.ContextDockerfile), file("#"), dir("a"), dir("a/b"), file("a/b/f"), link("a/c"), dir("a/d"), file("a.txt"), link("l")}, ""},
		"absolute":               {[]tar.Header{file("/etc/passwd")}, "must not be"},
		"parent":                 {[]tar.Header{file("../x")}, "must not be"},
		"parent inside":          {[]tar.Header{dir("a"), file("a/../../x")}, "must not be"},
		"itself":                 {[]tar.Header{dir(".")}, "must not be"},
		"not clean":              {[]tar.Header{dir("a"), file("a//b")}, "must not be"},
		"two slashes":            {[]tar.Header{dir("a/")}, "must not be"},
		"no name":                {[]tar.Header{file("")}, "must not be"},
		"twice":                  {[]tar.Header{file("a"), link("a")}, "must not be"},
		"not sorted":             {[]tar.Header{file("b"), file("a")}, "must not be"},
		"in a link":              {[]tar.Header{link("a"), file("a/passwd")}, "must not be"},
		"in a file":              {[]tar.Header{file("a"), file("a/b")}, "must not be"},
		"in an earlier folder":   {[]tar.Header{dir("a"), dir("b"), file("c/x")}, "must not be"},
		"Dockerfile later":       {[]tar.Header{file("#"), file(agent.ContextDockerfile)}, "must not be"},
		"Dockerfile twice":       {[]tar.Header{file(agent.ContextDockerfile), file(agent.ContextDockerfile)}, "must not be"},
		"Dockerfile is a link":   {[]tar.Header{link(agent.ContextDockerfile)}, "must not be"},
		"Dockerfile is a folder": {[]tar.Header{dir(agent.ContextDockerfile)}, "must not be"},
		"hard link":              {[]tar.Header{{Typeflag: tar.TypeLink, Name: "a", Linkname: "/etc/passwd"}}, "is not a file"},
		"device":                 {[]tar.Header{{Typeflag: tar.TypeBlock, Name: "a", Devmajor: 8}}, "is not a file"},
		"pipe":                   {[]tar.Header{{Typeflag: tar.TypeFifo, Name: evil[:4]}}, "is not a file"},
		"global":                 {[]tar.Header{{Typeflag: tar.TypeXGlobalHeader, Name: "a", PAXRecords: map[string]string{"path": "/etc"}}}, "is not a file"},
		"long name":              {[]tar.Header{file(long)}, "too long"},
		"long link":              {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "a", Linkname: long}}, "too long"},
	} {
		got, err := contextOf(t, "\r\n"+tarOf(t, c.sent...))
		if c.words != "" {
			if !errors.Is(err, agent.ErrRefused) || !strings.Contains(err.Error(), c.words) || !printable(err.Error()) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || string(got) != tarOf(t, c.sent...) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	// Owners, times, bits and attributes are left out.
	own := tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 3, Mode: 0o6755, Uid: 5, Uname: "x", ModTime: time.Unix(9, 0), PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}
	plain := tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 3, Mode: 0o755}
	if got, err := contextOf(t, "\r\n"+tarOf(t, own)); err != nil || string(got) != tarOf(t, plain) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHostileContextStream(t *testing.T) {
	t.Parallel()
	sent := tarOf(t, file("a"), tar.Header{Typeflag: tar.TypeReg, Name: "b", Size: 1000, Mode: 0o644})
	chunked := func(content, rest string) string {
		var b strings.Builder
		w := httputil.NewChunkedWriter(&b)
		_, _ = io.WriteString(w, content)
		_ = w.Close()
		return "Transfer-Encoding: chunked\r\nTrailer: " + agent.TrailerProblem + "\r\n\r\n" + b.String() + rest
	}
	many := make([]tar.Header, agent.MaxContextEntries+1)
	for i := range many {
		many[i] = file(fmt.Sprintf("%08d", i))
	}
	endless := tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1 << 40}
	var begun bytes.Buffer
	if err := tar.NewWriter(&begun).WriteHeader(&endless); err != nil {
		t.Fatal(err)
	}
	var later bytes.Buffer // with the entry before it, larger than any number
	w := tar.NewWriter(&later)
	first, largest := file("a"), tar.Header{Typeflag: tar.TypeReg, Name: "b", Size: math.MaxInt64}
	if err := errors.Join(w.WriteHeader(&first), w.WriteHeader(&largest)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body string
		want error
	}{
		"complete":       {chunked(sent, "\r\n"), nil},
		"no end":         {chunked(sent, ""), agent.ErrUnreachable},
		"part":           {"\r\n" + sent[:700], agent.ErrUnreachable},
		"part of a file": {"\r\n" + sent[:1100], agent.ErrUnreachable},
		"other data":     {"\r\n" + sent + strings.Repeat("x", 1<<20), agent.ErrUnreachable},
		"no tar":         {"\r\n" + strings.Repeat("x", 1<<20), agent.ErrUnreachable},
		"a reason":       {chunked(sent[:1100], agent.TrailerProblem+": no more\r\n\r\n"), agent.ErrRefused},
		"a long reason":  {chunked(sent, agent.TrailerProblem+": "+strings.Repeat("é", 1500)+"\r\n\r\n"), agent.ErrRefused},
		"an evil reason": {chunked(sent, agent.TrailerProblem+": \x1b[2J\r\n\r\n"), agent.ErrUnreachable},
		"endless reason": {chunked(sent, agent.TrailerProblem+": "+strings.Repeat("x", 1<<20)+"\r\n\r\n"), agent.ErrUnreachable},
		"many entries":   {"\r\n" + tarOf(t, many...), agent.ErrRefused},
		"endless file":   {"\r\n" + begun.String(), agent.ErrRefused},
		"largest file":   {"\r\n" + later.String(), agent.ErrRefused},
	} {
		_, err := contextOf(t, c.body)
		if (err == nil) != (c.want == nil) || !errors.Is(err, c.want) || err != nil && (!printable(err.Error()) || utf8.RuneCountInString(err.Error()) > 1100) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
