package agent

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// PathContext is where the agent streams a folder of a repository as a tar. The query has folder (the
// repository's, below the home), path (below that) and dockerfile (below the repository; empty: none,
// and no .dockerignore counts).
const PathContext = "/v1/setup/context"

// ContextDockerfile is the name of the Dockerfile in a context, of which it is the first entry. A
// file of the repository with this name is left out.
const ContextDockerfile = ".codehub-dockerfile"

// TrailerProblem is the HTTP trailer with the reason why a stream ended early.
const TrailerProblem = "Codehub-Problem"

// Limits of a context.
const (
	MaxContextBytes   = 256 << 20 // of the tar
	MaxContextEntries = 50_000
	MaxContextDepth   = 100

	maxContextPath = 4096        // bytes of a path or of a link
	contextPart    = 32 << 10    // bytes that are read at a time
	contextPause   = time.Minute // within which a part has to arrive
)

// ContextWriter writes the tar of a context: the Dockerfile, then regular files, links and folders,
// each in a folder that came before, sorted by their paths' parts. The same content gives the same
// bytes.
type ContextWriter struct {
	tar     *tar.Writer
	to      *counter
	entries int
	last    string // path of the last entry, with NUL in place of each slash
	folder  string // path of the last folder
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// NewContextWriter returns a ContextWriter.
func NewContextWriter(w io.Writer) *ContextWriter {
	to := &counter{w: w}
	return &ContextWriter{tar: tar.NewWriter(to), to: to}
}

// Add begins an entry: name, type, permissions, and size or link of h count. The error says which
// limit or rule the entry breaks.
func (c *ContextWriter) Add(h *tar.Header) error {
	out := tar.Header{Typeflag: h.Typeflag, Name: h.Name, Mode: h.Mode & 0o777}
	switch h.Typeflag {
	case tar.TypeReg:
		out.Size = h.Size
	case tar.TypeSymlink:
		out.Linkname = h.Linkname
	case tar.TypeDir:
		out.Name = strings.TrimSuffix(h.Name, "/") + "/"
	default:
		return fmt.Errorf("%.400q is not a file, link or folder", h.Name)
	}
	name := strings.TrimSuffix(out.Name, "/")
	above, key := "", strings.ReplaceAll(name, "/", "\x00")
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		above = name[:i+1]
	}
	dockerfile := name == ContextDockerfile
	c.entries++
	switch {
	case c.entries > MaxContextEntries:
		return fmt.Errorf("the build context has more than %d files and folders: leave some out with a .dockerignore", MaxContextEntries)
	case out.Size > MaxContextBytes-c.to.n:
		return fmt.Errorf("the build context has more than %d MiB: leave files out with a .dockerignore", MaxContextBytes>>20)
	case strings.Count(name, "/") >= MaxContextDepth, len(name) > maxContextPath, len(out.Linkname) > maxContextPath:
		return fmt.Errorf("the path or the link of %.400q is too long", name)
	case !filepath.IsLocal(name), filepath.Clean(name) != name, name == ".", out.Size < 0,
		dockerfile && (c.entries > 1 || out.Typeflag != tar.TypeReg),
		!dockerfile && key <= c.last, !strings.HasPrefix(c.folder, above):
		return fmt.Errorf("%.400q must not be in a build context, or not there", h.Name)
	}
	if !dockerfile {
		c.last = key
	}
	if out.Typeflag == tar.TypeDir {
		c.folder = out.Name
	}
	return c.tar.WriteHeader(&out)
}

// Write writes content of the last entry.
func (c *ContextWriter) Write(p []byte) (int, error) { return c.tar.Write(p) }

// Close ends the tar.
func (c *ContextWriter) Close() error { return c.tar.Close() }

// Context streams a folder of a repository as ContextWriter writes it: the agent's tar is read and
// written again, so that nothing in it breaks the rules. A context that cannot be read, or is too
// large, is a RefusedError, also of Read. ctx limits the stream.
func (c *Client) Context(ctx context.Context, folder, path, dockerfile string) (io.ReadCloser, error) {
	asked, cancel := c.within(ctx)
	defer cancel()
	query := url.Values{"folder": {folder}, "path": {path}, "dockerfile": {dockerfile}}
	conn, res, err := c.request(asked, http.MethodGet, PathContext, query, nil, 2*MaxContextBytes, false)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer conn.Close()
		return nil, refused(res)
	}
	r := &contextReader{ctx: ctx, conn: conn, res: res, in: tar.NewReader(res.Body), pause: cmp.Or(c.AnswerTimeout, contextPause)}
	r.out = NewContextWriter(&r.ready)
	r.stop = context.AfterFunc(ctx, func() { conn.Close() })
	return r, nil
}

// contextReader reads a tar and writes it again.
type contextReader struct {
	ctx   context.Context
	conn  *Conn
	res   *http.Response
	pause time.Duration
	stop  func() bool

	in    *tar.Reader
	out   *ContextWriter // into ready
	left  int64          // bytes of the current entry
	ready bytes.Buffer
	err   error
}

// Read implements io.Reader.
func (r *contextReader) Read(p []byte) (int, error) {
	for r.ready.Len() == 0 && r.err == nil {
		r.err = r.next()
	}
	if r.ready.Len() > 0 {
		return r.ready.Read(p)
	}
	return 0, r.err
}

// next reads the next part; io.EOF: there is none.
func (r *contextReader) next() error {
	_ = r.conn.SetReadDeadline(time.Now().Add(r.pause)) // a connection that is closed fails below
	if r.left > 0 {
		n, err := io.CopyN(r.out, r.in, min(r.left, contextPart))
		if r.left -= n; err != nil {
			return r.ended(err)
		}
		return nil
	}
	h, err := r.in.Next()
	if err == io.EOF {
		if err := r.ended(nil); err != nil {
			return err
		}
		return cmp.Or(r.out.Close(), io.EOF)
	}
	if err != nil {
		return r.ended(err)
	}
	if err := r.out.Add(h); err != nil {
		return &RefusedError{Status: http.StatusUnprocessableEntity, Message: err.Error()}
	}
	if h.Typeflag == tar.TypeReg {
		r.left = h.Size
	}
	return nil
}

// ended returns the reason why the stream ended, where err is the error of the tar: nil at its end.
func (r *contextReader) ended(err error) error {
	_, rest := io.CopyN(io.Discard, r.res.Body, maxAnswer)
	if text := printable(r.res.Trailer.Get(TrailerProblem), maxReason); text != "" {
		return &RefusedError{Status: http.StatusUnprocessableEntity, Message: text}
	}
	if rest != io.EOF {
		err = cmp.Or(err, rest, errors.New("the tar is followed by other data"))
	}
	if err != nil {
		return unreachable(r.ctx, err)
	}
	return nil
}

// Close ends the stream.
func (r *contextReader) Close() error {
	r.stop()
	return r.conn.Close()
}
