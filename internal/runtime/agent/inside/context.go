package inside

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
	"codehub/internal/runtime/agent"
)

// maxContextSeen is the maximum number of entries in the folder of a context, ignored ones included.
const maxContextSeen = 4 * agent.MaxContextEntries

// buildContext streams a folder of a repository as agent.PathContext describes.
func (s *Server) buildContext(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	err := errors.New("the folder of the repository cannot be opened")
	s.inRepository(query.Get("folder"), func(repo *os.Root) {
		var top *os.Root
		if top, err = repo.OpenRoot(query.Get("path")); err != nil {
			err = failed(query.Get("path"), err)
			return
		}
		defer top.Close()
		var c *contextTar
		if c, err = newContext(repo, top, query.Get("dockerfile")); err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set("Trailer", agent.TrailerProblem)
		w.WriteHeader(http.StatusOK)
		if err := c.write(w, top); err != nil {
			w.Header().Set(agent.TrailerProblem, err.Error())
		}
	})
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, err)
	}
}

// contextTar writes a build context. treewalk does not fit: it sorts the parts of a folder only.
type contextTar struct {
	out        *agent.ContextWriter
	dockerfile []byte // nil: none
	ignore     *patternmatcher.PatternMatcher
	seen       int
	pending    []*tar.Header // ignored folders around the current entry that are not written
}

// newContext reads the Dockerfile of a repository and the .dockerignore for the folder top.
func newContext(repo, top *os.Root, dockerfile string) (*contextTar, error) {
	c := &contextTar{}
	var patterns []string
	if dockerfile != "" {
		content, problem := readDescription(repo, dockerfile)
		if problem != "" {
			return nil, unusable(dockerfile, problem)
		}
		c.dockerfile = append([]byte{}, content...)
		for _, f := range []struct {
			in   *os.Root
			name string
		}{{repo, dockerfile + ".dockerignore"}, {top, ".dockerignore"}} {
			if _, err := f.in.Lstat(f.name); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			content, problem := readDescription(f.in, f.name)
			if problem != "" {
				return nil, unusable(f.name, problem)
			}
			var err error
			if patterns, err = ignorefile.ReadAll(bytes.NewReader(content)); err != nil {
				return nil, failed(f.name, err)
			}
			break
		}
	}
	var err error
	if c.ignore, err = patternmatcher.New(patterns); err != nil {
		return nil, failed(".dockerignore", err)
	}
	return c, nil
}

func unusable(name, problem string) error {
	switch problem {
	case agent.ProblemLong:
		return fmt.Errorf("%s has more than %d bytes", treewalk.Quoted(name), agent.MaxDescription)
	case agent.ProblemKind:
		return fmt.Errorf("%s is not a regular file", treewalk.Quoted(name))
	}
	return fmt.Errorf("%s does not exist, cannot be read, or is a link out of the repository", treewalk.Quoted(name))
}

// failed returns an error with the path in the context instead of that on the machine.
func failed(name string, err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", treewalk.Quoted(name), err)
}

func (c *contextTar) write(w io.Writer, top *os.Root) error {
	c.out = agent.NewContextWriter(w)
	if c.dockerfile != nil {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: agent.ContextDockerfile, Mode: 0o644, Size: int64(len(c.dockerfile))}
		if err := c.add(h, bytes.NewReader(c.dockerfile)); err != nil {
			return err
		}
	}
	if err := c.folder(top, "", patternmatcher.MatchInfo{}); err != nil {
		return err
	}
	return c.out.Close()
}

// add writes an entry, after the folders around it.
func (c *contextTar) add(h *tar.Header, content io.Reader) error {
	for _, folder := range c.pending {
		if err := c.out.Add(folder); err != nil {
			return err
		}
	}
	c.pending = nil
	if err := c.out.Add(h); err != nil {
		return err
	}
	// A file that grows meanwhile is cut to its earlier size.
	if n, err := io.CopyN(c.out, content, h.Size); err != nil {
		if err == io.EOF {
			err = fmt.Errorf("the file got shorter while it was read (%d of %d bytes)", n, h.Size)
		}
		return failed(h.Name, err)
	}
	return nil
}

// folder writes the content of a folder, whose path in the context is name.
func (c *contextTar) folder(dir *os.Root, name string, above patternmatcher.MatchInfo) error {
	f, err := dir.Open(".")
	if err != nil {
		return failed(name, err)
	}
	entries, err := f.ReadDir(maxContextSeen - c.seen + 1)
	f.Close()
	if err != nil && err != io.EOF {
		return failed(name, err)
	}
	if c.seen += len(entries); c.seen > maxContextSeen {
		return fmt.Errorf("the folder of the build context has more than %d files and folders", maxContextSeen)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		name := path.Join(name, e.Name())
		if name == agent.ContextDockerfile {
			continue
		}
		ignored, match, err := c.ignore.MatchesUsingParentResults(name, above)
		switch {
		case err != nil:
			return failed(".dockerignore", err)
		case ignored && !(e.IsDir() && c.mayHaveExceptions(name)):
		case e.IsDir():
			err = c.subfolder(dir, e.Name(), name, ignored, match)
		case e.Type().IsRegular():
			err = c.file(dir, e.Name(), name)
		case e.Type() == fs.ModeSymlink:
			var target string
			if target, err = dir.Readlink(e.Name()); err != nil {
				return failed(name, err)
			}
			err = c.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayHaveExceptions reports whether an exception of the .dockerignore may be in an ignored folder.
func (c *contextTar) mayHaveExceptions(folder string) bool {
	return slices.ContainsFunc(c.ignore.Patterns(), func(p *patternmatcher.Pattern) bool {
		return p.Exclusion() && (strings.HasPrefix(p.String(), folder+"/") || strings.ContainsAny(p.String(), `*?[\`))
	})
}

// subfolder writes a folder of dir. An ignored one is written only if something in it is.
func (c *contextTar) subfolder(dir *os.Root, base, name string, ignored bool, match patternmatcher.MatchInfo) error {
	if strings.Count(name, "/") >= agent.MaxContextDepth { // each one takes a descriptor
		return fmt.Errorf("%s is nested more than %d folders deep", treewalk.Quoted(name), agent.MaxContextDepth)
	}
	sub, err := dir.OpenRoot(base)
	if err != nil {
		return failed(name, err)
	}
	defer sub.Close()
	info, err := sub.Stat(".")
	if err != nil {
		return failed(name, err)
	}
	h := &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: int64(info.Mode().Perm())}
	outer := len(c.pending)
	if ignored {
		c.pending = append(c.pending, h)
	} else if err := c.add(h, nil); err != nil {
		return err
	}
	err = c.folder(sub, name, match)
	c.pending = c.pending[:min(outer, len(c.pending))]
	return err
}

// file writes a regular file of dir. It does not block if a pipe has replaced the file.
func (c *contextTar) file(dir *os.Root, base, name string) error {
	f, err := dir.OpenFile(base, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return failed(name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = treewalk.ErrChanged
	}
	if err != nil {
		return failed(name, err)
	}
	return c.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size()}, f)
}
