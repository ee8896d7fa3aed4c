package inside

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/base/flow"
)

const dialTimeout = 10 * time.Second

// dial connects the conversation to an address.
func (s *Server) dial(w http.ResponseWriter, r *http.Request) {
	network, address, err := addressOf(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	var d net.Dialer
	to, err := d.DialContext(ctx, network, address)
	if err != nil {
		refuse(w, http.StatusBadGateway, err)
		return
	}
	defer to.Close()
	from, ok := s.converse(w, r)
	if !ok {
		return
	}
	defer from.Close()
	join(from, to, s.cfg.resetInterval())
}

// addressOf reads the network and the address of a request.
func addressOf(r *http.Request) (network, address string, err error) {
	network, address = r.URL.Query().Get("network"), r.URL.Query().Get("address")
	switch network {
	case "tcp":
		if _, _, err := net.SplitHostPort(address); err != nil {
			return "", "", err
		}
	case "unix":
		if !filepath.IsAbs(address) {
			return "", "", errors.New("the path of a socket has to be absolute")
		}
	default:
		return "", "", errors.New(`the network has to be "tcp" or "unix"`)
	}
	return network, address, nil
}

// resetInterval is how often a joined connection is checked for a reset, which a silent
// program would leave unnoticed.
func (c Config) resetInterval() time.Duration { return cmp.Or(c.ResetInterval, 10*time.Second) }

// join joins the connections. A server that gives one up resets it. For one that was killed, the
// kernel of its machine does so, at a keep-alive about a minute later. Then both sides are closed,
// even if the program is silent.
func join(server *net.TCPConn, program net.Conn, resetInterval time.Duration) {
	open, over := context.WithCancel(context.Background())
	defer over()
	go func() {
		check := time.NewTicker(resetInterval)
		defer check.Stop()
		for {
			select {
			case <-open.Done():
				return
			case <-check.C:
				if isReset(server) {
					server.Close()
					program.Close()
				}
			}
		}
	}()
	flow.Join(checked{server, over}, program.(flow.Conn), nil)
}

// checked is a connection whose check for a reset is over when its output ends.
type checked struct {
	*net.TCPConn
	over func()
}

func (c checked) CloseWrite() error {
	c.over()
	return c.TCPConn.CloseWrite()
}

// isReset reports whether the other side has reset a connection of which this side has not
// ended its direction.
func isReset(conn *net.TCPConn) bool {
	state, ok := stateOf(conn)
	return !ok || state == unix.BPF_TCP_CLOSE
}
