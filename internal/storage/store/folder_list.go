package store

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
		err := s.each(ctx, "list "+prefix, prefix, func(_ *os.Root, o Object, temp string) error {
			if temp == "" && !yield(o, nil) {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			yield(Object{}, err)
		}
	}
}

// AbortIncomplete also removes folders that have been empty for that long,
// which uploads without data leave.
func (s *Folder) AbortIncomplete(ctx context.Context, prefix string, age time.Duration, keep func(key string) bool) (int, error) {
	n := 0
	doing := "sweep " + prefix
	before := time.Now().Add(-age)
	err := s.each(ctx, doing, prefix, func(root *os.Root, o Object, temp string) error {
		if temp == "" || o.Modified.After(before) || keep != nil && keep(o.Key) {
			return nil
		}
		if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unavailable(ctx, doing, err)
		}
		n++
		return nil
	})
	if err != nil {
		return n, err
	}
	root, err := s.open(ctx, doing)
	if err != nil {
		return n, err
	}
	defer root.Close()
	if err := removeEmpty(ctx, root, ".", prefix, before); err != nil {
		return n, unavailable(ctx, doing, err)
	}
	return n, nil
}

// removeEmpty removes the empty folders below dir whose keys would begin with
// prefix. Concurrent changes are not errors.
func removeEmpty(ctx context.Context, root *os.Root, dir, prefix string, before time.Time) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	f, err := root.Open(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	list, err := f.ReadDir(-1)
	var st fs.FileInfo
	if err == nil {
		st, err = f.Stat()
	}
	f.Close()
	if err != nil {
		return ignoreMissing(err)
	}
	for _, d := range list {
		name := path.Join(dir, d.Name())
		if d.IsDir() && (strings.HasPrefix(name+"/", prefix) || strings.HasPrefix(prefix, name+"/")) {
			if err := removeEmpty(ctx, root, name, prefix, before); err != nil {
				return err
			}
		}
	}
	if len(list) == 0 && dir != "." && strings.HasPrefix(dir+"/", prefix) && st.ModTime().Before(before) {
		_ = root.Remove(dir) // fails if it is not empty any more
	}
	return nil
}

// each visits the files whose keys begin with prefix, in order, temporary ones
// included: temp is the name of such a file, and its key the one of the
// unfinished object.
func (s *Folder) each(ctx context.Context, doing, prefix string, visit func(root *os.Root, o Object, temp string) error) error {
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

func (s *Folder) walk(ctx context.Context, root *os.Root, dir, prefix string, visit func(root *os.Root, o Object, temp string) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	f, err := root.Open(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	list, err := f.ReadDir(-1)
	f.Close()
	if err != nil && dir != "." {
		return ignoreMissing(err) // removed in the meantime
	}
	if err != nil {
		return err
	}
	order := func(d fs.DirEntry) string { // the order of S3, by whole keys
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
		key, temp := name, ""
		if rest, ok := strings.CutPrefix(d.Name(), tempPrefix); ok {
			_, base, _ := strings.Cut(rest, "-")
			key, temp = path.Join(dir, base), name
		}
		if !d.Type().IsRegular() || d.Name() == marker || !strings.HasPrefix(key, prefix) {
			continue
		}
		st, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime
		}
		if err != nil {
			return err
		}
		if err := visit(root, Object{Key: key, Size: st.Size(), Modified: st.ModTime()}, temp); err != nil {
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

// Check creates the folder if necessary, and marks it.
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
	// The marker is written each time, so that a read-only folder shows.
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
