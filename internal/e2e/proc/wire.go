package proc

import (
	"io"
	"net"
	"net/url"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Wire is a way to a PostgreSQL that can be cut: what is on it then stays where
// it is, and nobody is told.
type Wire struct {
	URL string // of the database, over the wire

	network, address string // of the database
	listener         net.Listener
	group            sync.WaitGroup

	mu    sync.Mutex
	flows chan struct{} // closed while what comes passes
	ends  map[net.Conn]bool
	over  chan struct{}
}

// NewWire leads to the database at dsn.
func NewWire(dsn string) (*Wire, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{listener: l, flows: make(chan struct{}), ends: map[net.Conn]bool{}, over: make(chan struct{})}
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
		if !w.keep(end) {
			return
		}
		defer w.drop(end)
	}
	var both sync.WaitGroup
	both.Go(func() { w.pass(server, client) })
	w.pass(client, server)
	both.Wait()
}

// pass carries one direction. The end of it is news like any other, and waits
// while the wire is cut.
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

// wait is until the wire is whole; false once it is closed.
func (w *Wire) wait() bool {
	w.mu.Lock()
	flows := w.flows
	w.mu.Unlock()
	select {
	case <-flows:
		return true
	case <-w.over:
		return false
	}
}

func (w *Wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.over:
		return false
	default:
	}
	w.ends[c] = true
	return true
}

func (w *Wire) drop(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ends, c)
}

// Cut keeps everything from passing. Connections stay open, and new ones are
// taken.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flows = make(chan struct{})
}

// Mend lets pass what was held up, and all that comes.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.flows:
	default:
		close(w.flows)
	}
}

// Close ends the wire with everything on it.
func (w *Wire) Close() {
	_ = w.listener.Close()
	w.mu.Lock()
	close(w.over)
	for c := range w.ends {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.group.Wait()
}
