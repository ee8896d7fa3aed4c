package storagejob

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"codehub/internal/storage/transfer"
)

const (
	// backoff is long enough for a bucket to restart.
	backoff = 3 * time.Second
	// serverAway is how long no server may listen on the socket, for example
	// during an upgrade.
	serverAway = 15 * time.Minute
)

// transfer returns a client that uses the bucket's socket. Without one it connects to the
// hosts of the URLs.
func (j *job) transfer() (*transfer.Client, error) {
	if j.Bucket == "" {
		t := transfer.NewTransport()
		if j.spec.Authorities != "" {
			roots, err := x509.SystemCertPool()
			if err != nil {
				return nil, fmt.Errorf("read the system's authorities: %w", err)
			}
			roots.AppendCertsFromPEM([]byte(j.spec.Authorities))
			t.TLSClientConfig = &tls.Config{RootCAs: roots}
		}
		return transfer.New(transfer.Options{Transport: t, Backoff: cmp.Or(j.Backoff, backoff)}), nil
	}
	d := &dialer{dir: j.Bucket, patience: serverAway, every: time.Second}
	return transfer.New(transfer.Options{Transport: transfer.Over(d.dial), Backoff: cmp.Or(j.Backoff, backoff)}), nil
}

// dialer connects to the bucket's socket and waits while no server listens.
type dialer struct {
	dir      string
	patience time.Duration
	every    time.Duration

	mu   sync.Mutex
	away time.Time // since when no server listens; zero: one does
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
		if !noListener(err) {
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

func noListener(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ENOENT, syscall.EAGAIN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// dialIn connects to the socket in dir. It names the folder by a descriptor,
// since a socket's path has at most 107 bytes.
func dialIn(ctx context.Context, dir string) (net.Conn, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(f.Fd()))+"/"+SocketName)
}
