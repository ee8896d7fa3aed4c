package storagejob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"codehub/internal/archive/transfer"
)

const (
	// backoff is such that a bucket that is restarted is back in time.
	backoff = 3 * time.Second
	// serverAway is how long the server, which the socket is of, may be away:
	// it is being replaced by a newer one, say.
	serverAway = 15 * time.Minute
)

// transfer moves objects through the bucket's socket.
func (j *job) transfer() *transfer.Client {
	d := &dialer{dir: j.Bucket, patience: serverAway, every: time.Second}
	return transfer.New(transfer.Options{Transport: transfer.Over(d.dial), Backoff: cmp.Or(j.Backoff, backoff)})
}

// dialer connects to the bucket's socket and waits while nobody listens there.
type dialer struct {
	dir      string
	patience time.Duration
	every    time.Duration

	mu   sync.Mutex
	away time.Time // since when nobody listens; zero: somebody does
}

func (d *dialer) dial(ctx context.Context) (net.Conn, error) {
	for {
		conn, err := dialIn(ctx, d.dir)
		if err == nil {
			d.mu.Lock()
			d.away = time.Time{}
			d.mu.Unlock()
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !nobodyThere(err) {
			return nil, fmt.Errorf("connect to the server's socket: %w", err)
		}
		if d.awayFor() >= d.patience {
			return nil, fmt.Errorf("no server has listened on the socket for %s: %w", d.patience, err)
		}
		select {
		case <-time.After(d.every):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (d *dialer) awayFor() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away.IsZero() {
		d.away = time.Now()
	}
	return time.Since(d.away)
}

func nobodyThere(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ENOENT, syscall.EAGAIN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// dialIn connects to the socket in dir. A socket's path is 107 bytes at most:
// the folder, whose path may be longer, is named by a descriptor.
func dialIn(ctx context.Context, dir string) (net.Conn, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(f.Fd()))+"/"+SocketName)
}
