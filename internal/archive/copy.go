package archive

import (
	"context"
	"errors"
	"io"
)

// Copy copies the folder from, as Pack archives it, into the empty folder to, and syncs it. The
// copy is complete only if the error is nil.
func Copy(ctx context.Context, from, to string, progress Progress) error {
	return pipe(ctx, from, func(r io.Reader) error {
		_, err := Unpack(ctx, r, to, UnpackOptions{Progress: progress})
		return err
	})
}

// pipe packs a folder for read.
func pipe(ctx context.Context, dir string, read func(r io.Reader) error) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := Pack(ctx, dir, w, PackOptions{})
		w.CloseWithError(err)
		packed <- err
	}()
	err := read(r)
	r.CloseWithError(err)
	if failed := <-packed; failed != nil && (err == nil || !errors.Is(failed, err)) {
		err = failed
	}
	return err
}
