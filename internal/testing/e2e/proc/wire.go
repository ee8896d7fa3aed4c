package proc

import (
	"io"
	"net"
	"net/url"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Wire is a proxy to PostgreSQL that can be cut: data then stops without an
// error on either side.
type Wire struct {
	URL string // of the database, through the wire

	network, address string // of the database
	listener         net.Listener
	group            sync.WaitGroup

	mu     sync.Mutex
	flows  chan struct{} // closed while data passes
	ends   map[net.Conn]bool
	closed chan struct{}
}

// NewWire returns a wire to the database at dsn.
func NewWire(dsn string) (*Wire, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{listener: l, flows: make(chan struct{}), ends: map[net.Conn]bool{}, closed: make(chan struct{})}
	close(w.flows)
	w.network, w.address = pgconn.NetworkAddress(cfg.Host, cfg.Port)
	u := url.URL{Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Host: l.Addr().String(), Path: "/" + cfg.Database, RawQuery: "sslmode=disable"}
	w.URL = u.String()
	w.group.Go(w.accept)
	return w, nil
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.group.Go(func() { w.carry(client) })
	}
}

func (w *Wire) carry(client net.Conn) {
	defer client.Close()
	if !w.wait() {
		return
	}
	server, err := net.Dial(w.network, w.address)
	if err != nil {
		return
	}
	defer server.Close()
	for _, end := range []net.Conn{client, server} {
		if !w.add(end) {
			return
		}
		defer w.remove(end)
	}
	var both sync.WaitGroup
	both.Go(func() { w.pass(server, client) })
	w.pass(client, server)
	both.Wait()
}

// pass forwards data in one direction. It forwards the close as well, after a
// cut ends.
func (w *Wire) pass(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if !w.wait() {
			return
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			if err != io.EOF {
				_ = from.Close()
			}
			_ = to.Close()
			return
		}
	}
}

// wait blocks while the wire is cut. It returns false once the wire is closed.
func (w *Wire) wait() bool {
	w.mu.Lock()
	flows := w.flows
	w.mu.Unlock()
	select {
	case <-flows:
		return true
	case <-w.closed:
		return false
	}
}

func (w *Wire) add(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
		return false
	default:
	}
	w.ends[c] = true
	return true
}

func (w *Wire) remove(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ends, c)
}

// Cut stops all data. Connections stay open, and new ones are accepted.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flows = make(chan struct{})
}

// Mend ends a cut and forwards the held data.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.flows:
	default:
		close(w.flows)
	}
}

// Close closes the wire and its connections.
func (w *Wire) Close() {
	_ = w.listener.Close()
	w.mu.Lock()
	close(w.closed)
	for c := range w.ends {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.group.Wait()
}
