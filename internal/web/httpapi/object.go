package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"codehub/internal/storage/store"
)

// object is an object of the bucket as an io.ReadSeeker. The first read after a seek
// opens it at that offset.
type object struct {
	ctx      context.Context // the request's
	archives Archives
	key      string
	size     int64
	within   time.Duration // for one read of the bucket

	at   int64
	body io.ReadCloser
	stop context.CancelFunc // of the body
	// err is why reading failed, for callers that read through a type that drops errors.
	err error
}

func newObject(ctx context.Context, a Archives, key string, size int64, within time.Duration) *object {
	return &object{ctx: ctx, archives: a, key: key, size: size, within: within}
}

// Seek implements io.Seeker.
func (o *object) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += o.at
	case io.SeekEnd:
		offset += o.size
	}
	if offset < 0 {
		return o.at, errors.New("seek before the beginning")
	}
	if offset != o.at {
		o.Close()
		o.at = offset
	}
	return offset, nil
}

func (o *object) Read(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	if o.at >= o.size {
		return 0, io.EOF
	}
	n, err := o.read(b)
	o.at += int64(n)
	if err == io.EOF && o.at < o.size {
		err = fmt.Errorf("%w: the object is %d bytes long and not %d", io.ErrUnexpectedEOF, o.at, o.size)
	}
	if err != nil && err != io.EOF {
		o.err = fmt.Errorf("read %s from the bucket: %w", o.key, err)
		return n, o.err
	}
	return n, err
}

// read reads once from the body, and cancels that if the bucket takes too long.
func (o *object) read(b []byte) (int, error) {
	var ctx context.Context
	if o.body == nil {
		ctx, o.stop = context.WithCancel(o.ctx)
	}
	stalled := make(chan struct{})
	timer := time.AfterFunc(o.within, func() { close(stalled); o.stop() })
	n, err := 0, error(nil)
	if o.body == nil {
		o.body, err = o.archives.Open(ctx, o.key, o.at)
	}
	if err == nil {
		n, err = o.body.Read(b)
	}
	if !timer.Stop() {
		<-stalled
		if err == nil {
			err = context.Canceled
		}
		err = fmt.Errorf("%w: nothing came for %v: %w", store.ErrUnavailable, o.within, err)
	}
	return n, err
}

// Close closes the body if one is open.
func (o *object) Close() error {
	if o.stop == nil {
		return nil
	}
	defer func() { o.body, o.stop = nil, nil }()
	o.stop()
	if o.body == nil {
		return nil
	}
	return o.body.Close()
}
