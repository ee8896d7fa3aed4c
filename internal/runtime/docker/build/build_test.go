package build

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/dockertest"
)

func TestOwn(t *testing.T) {
	t.Parallel()
	if got := own(map[string]string{"codehub.owner": "ann", "codehub.claim": ""}); got != "LABEL \"codehub.claim\"=\"\" \"codehub.owner\"=\"ann\"\n" {
		t.Errorf("%q", got)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	var got []string
	l := lines{line: func(s string) { got = append(got, s) }}
	for _, part := range []string{
		"Step 2/3 : LABEL a=b", "\n", " ---> Running in 12\n", "Step 3/3 : RUN x\n", "one\ntw", "o\n", "\x1b[91mred\n\x1b[0m", "10%\r20%\r\n", "\x07bell\xff\n", strings.Repeat("long", 5000), "\n", "last",
	} {
		l.write(part)
	}
	l.end()
	if want := []string{"Step 3/3 : RUN x", "one", "two", "red", "20%", "bell\uFFFD", strings.Repeat("long", 1024), "last"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// Files of the context do not replace the Dockerfile, and none is a device.
func TestContext(t *testing.T) {
	t.Parallel()
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{{Name: dockerfileName, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, {Name: "null", Typeflag: tar.TypeChar}, {Name: "link", Typeflag: tar.TypeSymlink, Linkname: "a"}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), writeContext(&out, Spec{Context: []io.Reader{&in}, Files: map[string][]byte{"file": nil}}, "FROM a\n")); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(out.Bytes())); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name+string(h.Typeflag))
	}
	if want := []string{dockerfileName + "2", "link2", dockerfileName + "0", ignoreName + "0", "file0"}; !slices.Equal(names, want) {
		t.Errorf("entries: %q", names)
	}
	out.Reset()
	cut := dockertest.Tar(t, map[string]string{"a": strings.Repeat("a", 1000)})[:700]
	if failed := new(Failed); !errors.As(writeContext(&out, Spec{Context: []io.Reader{bytes.NewReader(cut)}}, ""), &failed) {
		t.Error("half a tar is taken")
	}
}

// newFake returns a Builder whose Docker answers builds with this stream.
func newFake(t *testing.T, stream string) *Builder {
	docker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if strings.HasSuffix(r.URL.Path, "/build") {
			_, _ = io.WriteString(w, stream)
		}
	}))
	t.Cleanup(docker.Close)
	e, err := engine.New(engine.Config{Installation: t.Name(), Host: "tcp://" + docker.Listener.Addr().String(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return New(e, nil, nil, 0)
}

// What ends a build without an image: a full disk, a Docker that stops, an instruction.
func TestErrorsOfDocker(t *testing.T) {
	t.Parallel()
	for stream, want := range map[string]error{
		`{"stream":"a\n"}{"aux":{"ID":"sha256:1"}}`: nil,
		`{"stream":"a\n"}`:                          runtime.ErrUnreachable,
		`{"stream":"a`:                              runtime.ErrUnreachable,
		`{"errorDetail":{"message":"failed to copy files: write /x: no space left on device"}}`:            runtime.ErrNoSpace,
		`{"errorDetail":{"message":"no available IPv4 addresses on this network's address pools: a (1)"}}`: runtime.ErrBusy,
	} {
		if err := newFake(t, stream).run(t.Context(), nil, client.ImageBuildOptions{}, &lines{line: func(string) {}}); !errors.Is(err, want) {
			t.Errorf("%s: %v", stream, err)
		}
	}
	for message, want := range map[string]string{
		`The command '/bin/sh -c echo : no space left on device' returned a non-zero code: 7`: `The command "echo : no space left on device" ended with code 7.`,
		`failed to pull: error parsing HTTP 404 response body: invalid character: "secret"`:   `Failed to pull: error parsing HTTP 404 response body.`,
		"dockerfile parse error line 2:\n unknown flag: x.":                                   "Dockerfile parse error line 2: unknown flag: x.",
	} {
		text, err := json.Marshal(map[string]any{"errorDetail": map[string]any{"message": message, "code": 7}})
		if err != nil {
			t.Fatal(err)
		}
		err = newFake(t, string(text)).run(t.Context(), nil, client.ImageBuildOptions{}, &lines{line: func(string) {}})
		if failed := new(Failed); !errors.As(err, &failed) || err.Error() != want {
			t.Errorf("%s: %v", message, err)
		}
	}
}
