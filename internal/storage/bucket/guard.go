package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"codehub/internal/base/breaker"
	"codehub/internal/storage/store"
)

// hangsAfter is the timeout of a call to a folder that moves no data.
const hangsAfter = 30 * time.Second

// guarded is a store under a circuit breaker: while that is open, calls fail at
// once with store.ErrUnavailable. For S3 the store's transport reports
// failures. A folder's disk either responds or hangs and ignores the context;
// then the call is abandoned.
type guarded struct {
	store.Store
	b      *breaker.Breaker
	folder bool
	within time.Duration
}

func guard(s store.Store, b *breaker.Breaker, folder bool) store.Store {
	if b == nil {
		return s
	}
	return guarded{Store: s, b: b, folder: folder, within: hangsAfter}
}

func (g guarded) allow(ctx context.Context, doing string) error {
	if err := g.b.Allow(ctx); err != nil {
		return fmt.Errorf("%s: %w: %w", doing, store.ErrUnavailable, err)
	}
	return nil
}

var errHangs = errors.New("the folder's disk is not responding")

// call makes a call to the store. The result of an abandoned call is passed to
// late, if it succeeded.
func call[T any](ctx context.Context, g guarded, doing string, f func(ctx context.Context) (T, error), late func(T)) (T, error) {
	var none T
	if err := g.allow(ctx, doing); err != nil {
		return none, err
	}
	if !g.folder {
		return f(ctx)
	}
	type answer struct {
		v   T
		err error
	}
	answered := make(chan answer)
	left := make(chan struct{})
	go func() {
		v, err := f(ctx)
		select {
		case answered <- answer{v, err}:
		case <-left:
			if err == nil && late != nil {
				late(v)
			}
		}
	}()
	began := time.Now()
	timer := time.NewTimer(g.within)
	defer timer.Stop()
	select {
	case a := <-answered:
		g.b.Note(ctx, began, nil)
		return a.v, a.err
	case <-timer.C:
	case <-ctx.Done():
	}
	close(left)
	err := errHangs
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	g.b.Note(ctx, began, err)
	if errors.Is(err, context.Canceled) {
		return none, fmt.Errorf("%s: %w", doing, err)
	}
	return none, fmt.Errorf("%s: %w: %w", doing, store.ErrUnavailable, err)
}

func (g guarded) Stat(ctx context.Context, key string) (store.Object, error) {
	return call(ctx, g, "stat "+key, func(ctx context.Context) (store.Object, error) { return g.Store.Stat(ctx, key) }, nil)
}

func (g guarded) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	return call(ctx, g, "get "+key, func(ctx context.Context) (io.ReadCloser, error) { return g.Store.Get(ctx, key, offset) },
		func(r io.ReadCloser) { _ = r.Close() })
}

func (g guarded) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	return call(ctx, g, "get "+key, func(ctx context.Context) (io.ReadCloser, error) {
		return g.Store.GetRange(ctx, key, offset, length)
	}, func(r io.ReadCloser) { _ = r.Close() })
}

func (g guarded) Delete(ctx context.Context, key string) error {
	_, err := call(ctx, g, "delete "+key, func(ctx context.Context) (struct{}, error) { return struct{}{}, g.Store.Delete(ctx, key) }, nil)
	return err
}

func (g guarded) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	if err := g.allow(ctx, "put "+key); err != nil {
		return 0, err
	}
	return g.Store.Put(ctx, key, r)
}

func (g guarded) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	if err := g.allow(ctx, "list "+prefix); err != nil {
		return func(yield func(store.Object, error) bool) { yield(store.Object{}, err) }
	}
	return g.Store.List(ctx, prefix)
}

func (g guarded) AbortIncomplete(ctx context.Context, prefix string, age time.Duration, keep func(key string) bool) (int, error) {
	if err := g.allow(ctx, "sweep "+prefix); err != nil {
		return 0, err
	}
	return g.Store.AbortIncomplete(ctx, prefix, age, keep)
}

// probe makes a cheap call to the store. Any result of a folder is a response;
// for S3 the breaker's transport decides.
func (b *Bucket) probe(s store.Store) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.Stat(ctx, b.marker())
		if b.folders != nil || !errors.Is(err, store.ErrUnavailable) {
			return nil
		}
		return err
	}
}

// makeFolder creates the folder of an archive in a folder store.
func (b *Bucket) makeFolder(ctx context.Context, key string) error {
	g, ok := b.encrypted.Store.(guarded)
	if !ok {
		return b.folders.MakeFolder(ctx, key)
	}
	_, err := call(ctx, g, "create the folder of "+key, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.folders.MakeFolder(ctx, key)
	}, nil)
	return err
}
