package bucket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"codehub/internal/storage/storagejob"
)

const (
	// watchSocket is how often a server checks whether another one listens.
	watchSocket = 2 * time.Second
	bufferSize  = 128 << 10
)

// listen serves on the socket whenever no other server does, until ctx ends. A
// failure at the start is an error; later failures are retried.
func (b *Bucket) listen(ctx context.Context, server *http.Server) error {
	var serving sync.WaitGroup
	ticks := time.NewTicker(watchSocket)
	defer ticks.Stop()
	for first := true; ; first = false {
		if !listened(ctx, b.SocketDir) && ctx.Err() == nil {
			l, err := bind(b.SocketDir)
			switch {
			case err == nil:
				b.socket.Set(nil)
				serving.Go(func() {
					if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
						b.socket.Set(err)
					}
				})
			case first:
				return err
			default:
				b.socket.Set(err)
			}
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			_ = server.Close()
			serving.Wait()
			return nil
		}
	}
}

// listened reports whether a server listens on the socket in dir.
func listened(ctx context.Context, dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(ctx, watchSocket)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", inFolder(f, storagejob.SocketName))
	if err == nil {
		conn.Close()
		return true
	}
	// A server that is busy or hangs counts as listening.
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT)
}

// bind creates the socket and replaces an existing one.
func bind(dir string) (net.Listener, error) {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		// The folder's mode keeps other users out. A job's container sees only
		// the folder, and its root may be another user.
		err = os.Chmod(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("create folder for the bucket's socket: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("bind the bucket's socket: %w", err)
	}
	defer f.Close()
	temp := storagejob.SocketName + "." + strconv.Itoa(os.Getpid())
	_ = os.Remove(filepath.Join(dir, temp))
	l, err := net.Listen("unix", inFolder(f, temp))
	if err != nil {
		return nil, fmt.Errorf("bind the bucket's socket: %w", err)
	}
	// The listener must not remove the name, which may belong to another server
	// by then.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(filepath.Join(dir, temp), 0o666)
	if err == nil {
		err = os.Rename(filepath.Join(dir, temp), filepath.Join(dir, storagejob.SocketName))
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("bind the bucket's socket: %w", err)
	}
	return l, nil
}

// inFolder names a socket by its folder's descriptor, since a socket's path has
// at most 107 bytes.
func inFolder(f *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "/" + name
}

// buffers is the proxy's buffer pool.
type buffers struct{ pool sync.Pool }

func newBuffers() *buffers {
	return &buffers{sync.Pool{New: func() any { return new([bufferSize]byte) }}}
}

func (b *buffers) Get() []byte { return b.pool.Get().(*[bufferSize]byte)[:] }

func (b *buffers) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }
