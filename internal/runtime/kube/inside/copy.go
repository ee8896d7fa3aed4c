package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"codehub/internal/archive"
	"codehub/internal/treewipe"
)

// seed replaces the content of a home by that of the image's folder, and gives the home that
// folder's owner, mode and attributes. The result is durable. Without such a folder the home
// is empty. A call that was interrupted can be repeated.
func seed(ctx context.Context, from, home string, out io.Writer) error {
	if err := archive.ClearAttributes(home); err != nil {
		return fmt.Errorf("clear the home: %w", err)
	}
	if err := treewipe.Empty(ctx, home, nil); err != nil {
		return fmt.Errorf("clear the home: %w", err)
	}
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Chmod(home, 0o755)
	}
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err != nil {
		return fmt.Errorf("read %s of the image: %w", from, err)
	}
	at := pace(out)
	if err := pipe(ctx, from, home, func(_, entries int64) { at(entries) }); err != nil {
		return fmt.Errorf("copy %s of the image: %w", from, err)
	}
	return nil
}

// pipe unpacks into an empty folder what it packs of another one.
func pipe(ctx context.Context, from, to string, progress archive.Progress) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := archive.Pack(ctx, from, w, archive.PackOptions{})
		w.CloseWithError(err)
		packed <- err
	}()
	_, err := archive.Unpack(ctx, r, to, archive.UnpackOptions{Progress: progress})
	r.CloseWithError(err)
	return errors.Join(err, <-packed)
}

// copyTree copies a folder's content into an empty folder of the same Pod.
func copyTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err := errors.Join(err, context.Cause(ctx)); err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil || name == "." {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case entry.IsDir():
			return os.Mkdir(target, 0o755)
		case entry.Type() == fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case entry.Type().IsRegular():
			return copyFile(path, target)
		}
		return fmt.Errorf("%s is neither a file, a folder nor a link", path)
	})
}

// copyFile copies a file with its permissions, and creates the folders above the target.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
