package devcontainers

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
	"codehub/internal/workspace/devcontainer"
)

const (
	maxText     = 1 << 20  // bytes of a Dockerfile or devcontainer-feature.json, more than either may have
	maxFeature  = 32 << 20 // bytes of one in the repository
	maxFeatures = 64 << 20 // bytes of all Features of a build

	contextFile = "context.tar"
)

// spool has the files of a build in a folder.
type spool struct {
	dir      string
	archives map[string][]byte // of Features, by digest
	held     int               // bytes of archives
	features int               // bytes of the Features in dir
}

func (s *spool) path(name string) string { return filepath.Join(s.dir, name) }

// readContext reads a folder of the workspace's repository; see agent.Client.Context.
func readContext(ctx context.Context, from Contexts, j job, folder, dockerfile string, to io.Writer) error {
	r, err := from.BuildContext(ctx, j.w.ID, j.file.folder, folder, dockerfile)
	if err == nil {
		defer r.Close()
		_, err = io.Copy(to, r)
	}
	var refused *agent.RefusedError
	switch {
	case errors.As(err, &refused):
		return unusable("%s", refused.Message)
	case errors.Is(err, attach.ErrNoAgent):
		return workspace.Errorf(workspace.CodeUnavailable, "The workspace was started by another version of codehub. Restart it.")
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("the workspace stopped, or does not respond: %w", err)
	}
	return err
}

// context keeps the build context with its Dockerfile, and returns its digest.
func (s *spool) context(ctx context.Context, from Contexts, j job, b *devcontainer.Build) (digest string, err error) {
	f, err := os.Create(s.path(contextFile))
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if err := readContext(ctx, from, j, b.Context, b.Dockerfile, io.MultiWriter(f, sum)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), f.Close()
}

// dockerfile returns the Dockerfile of the context.
func (s *spool) dockerfile() (string, error) {
	f, err := os.Open(s.path(contextFile))
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := fileIn(f, agent.ContextDockerfile)
	if err != nil {
		return "", unusable("%s", err)
	}
	return string(text), nil
}

// fileIn returns a file at the top of a tar, up to more than it may have.
func fileIn(r io.Reader, name string) ([]byte, error) {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil, fmt.Errorf("it has no file %s", name)
		}
		if err != nil {
			return nil, errors.New("it is damaged")
		}
		if path.Clean(h.Name) == name && h.Typeflag == tar.TypeReg {
			return io.ReadAll(io.LimitReader(t, maxText+1))
		}
	}
}

// readFeature reads a Feature in the workspace's repository.
func readFeature(ctx context.Context, from Contexts, j job, folder string) (digest string, content []byte, err error) {
	var l limited
	if err := readContext(ctx, from, j, folder, "", &l); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(l.content)), l.content, nil
}

// limited keeps what is written, up to maxFeature.
type limited struct{ content []byte }

func (l *limited) Write(p []byte) (int, error) {
	if len(l.content)+len(p) > maxFeature {
		return 0, unusable("a Feature has more than %d MiB", maxFeature>>20)
	}
	l.content = append(l.content, p...)
	return len(p), nil
}

// keep keeps the archive of a Feature for add. The error is a sentence for its owner.
func (s *spool) keep(digest string, archive []byte) error {
	if s.archives == nil {
		s.archives = map[string][]byte{}
	}
	if _, ok := s.archives[digest]; ok {
		return nil
	}
	if s.held += len(archive); s.held > maxFeatures {
		return tooLarge()
	}
	s.archives[digest] = archive
	return nil
}

func tooLarge() error { return unusable("the Features have more than %d MiB", maxFeatures>>20) }

// add writes the content of a Feature that was kept, for a folder of the build context. The error
// is a clause without a full stop, or a sentence for its owner.
func (s *spool) add(dir, digest string) error {
	content := s.archives[digest]
	if s.features += len(content); s.features > maxFeatures {
		return tooLarge()
	}
	left := int64(len(content)) // a sparse file has more
	f, err := os.Create(s.path(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	out := tar.NewWriter(f)
	for in := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return errors.New("its archive is damaged")
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(name) {
			return fmt.Errorf("its archive has %.200q, which is not below its folder", h.Name)
		}
		to := tar.Header{Typeflag: h.Typeflag, Name: path.Join(dir, name), Mode: h.Mode & 0o777}
		switch h.Typeflag {
		case tar.TypeReg:
			if to.Size = h.Size; to.Size > left {
				return errors.New("its archive is damaged")
			}
			left -= to.Size
		case tar.TypeDir:
			to.Name += "/"
		case tar.TypeSymlink:
			to.Linkname = h.Linkname
		default:
			return fmt.Errorf("its archive has %.200q, which is not a file, link or folder", h.Name)
		}
		if err := out.WriteHeader(&to); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return errors.New("its archive is damaged")
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// open opens tars that were kept.
func (s *spool) open(names ...string) (tars []io.Reader, done func(), err error) {
	var files []*os.File
	done = func() {
		for _, f := range files {
			f.Close()
		}
	}
	for _, name := range names {
		f, err := os.Open(s.path(name))
		if err != nil {
			done()
			return nil, nil, err
		}
		files, tars = append(files, f), append(tars, f)
	}
	return tars, done, nil
}
