package archive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

func (s *Folder) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		err := s.each(ctx, "list "+prefix, prefix, func(_ *os.Root, o Object, temp bool) error {
			if !temp && !yield(o, nil) {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			yield(Object{}, err)
		}
	}
}

func (s *Folder) AbortIncomplete(ctx context.Context, prefix string, age time.Duration) (int, error) {
	n := 0
	doing := "sweep " + prefix
	before := time.Now().Add(-age)
	err := s.each(ctx, doing, prefix, func(root *os.Root, o Object, temp bool) error {
		if !temp || o.Modified.After(before) {
			return nil
		}
		if err := root.Remove(o.Key); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unavailable(ctx, doing, err)
		}
		n++
		return nil
	})
	return n, err
}

// each visits the files whose keys begin with prefix, in order, and also
// temporary ones, which count by the key that they were to get.
func (s *Folder) each(ctx context.Context, doing, prefix string, visit func(root *os.Root, o Object, temp bool) error) error {
	if err := checkPrefix(prefix); err != nil {
		return err
	}
	root, err := s.open(ctx, doing)
	if err != nil {
		return err
	}
	defer root.Close()
	err = s.walk(ctx, root, ".", prefix, visit)
	if err == nil || errors.Is(err, fs.SkipAll) {
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	return unavailable(ctx, doing, err)
}

func (s *Folder) walk(ctx context.Context, root *os.Root, dir, prefix string, visit func(*os.Root, Object, bool) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	f, err := root.Open(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	list, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	order := func(d fs.DirEntry) string { // S3 sorts by whole keys
		if d.IsDir() {
			return d.Name() + "/"
		}
		return d.Name()
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(order(a), order(b)) })
	for _, d := range list {
		name := path.Join(dir, d.Name())
		if d.IsDir() {
			if strings.HasPrefix(name+"/", prefix) || strings.HasPrefix(prefix, name+"/") {
				if err := s.walk(ctx, root, name, prefix, visit); err != nil {
					return err
				}
			}
			continue
		}
		key, temp := name, false
		if rest, ok := strings.CutPrefix(d.Name(), tempPrefix); ok {
			_, base, _ := strings.Cut(rest, "-")
			key, temp = path.Join(dir, base), true
		}
		if !d.Type().IsRegular() || d.Name() == marker || !strings.HasPrefix(key, prefix) {
			continue
		}
		st, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if err != nil {
			return err
		}
		if err := visit(root, Object{Key: name, Size: st.Size(), Modified: st.ModTime()}, temp); err != nil {
			return err
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Check makes the folder if need be, and marks it.
func (s *Folder) Check(ctx context.Context) error {
	fail := func(err error) error {
		return unavailable(ctx, fmt.Sprintf("archives cannot be kept in the folder %s: make it writable for this user, or set CODEHUB_ARCHIVE_URL to another", s.dir), err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fail(err)
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return fail(err)
	}
	defer root.Close()
	// Made anew each time, so that a folder that became read-only shows.
	temp := tempPrefix + rand.Text() + "-check"
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fail(err)
	}
	defer root.Remove(temp)
	_, err = f.WriteString("This folder holds the archives of codehub's workspaces.\n")
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = root.Rename(temp, marker)
	}
	if err == nil {
		err = syncFolder(root, ".")
	}
	if err != nil {
		return fail(err)
	}
	s.checked.Store(true)
	return nil
}
