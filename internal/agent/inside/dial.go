package inside

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"
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
	join(from, to)
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

type halfCloser interface{ CloseWrite() error }

// join copies both directions until both have ended, or one has failed. Each end of
// a direction is passed on.
func join(a, b net.Conn) {
	done := make(chan error, 2)
	pipe := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(halfCloser); ok && err == nil {
			err = half.CloseWrite()
		}
		done <- err
	}
	go pipe(a, b)
	go pipe(b, a)
	if <-done != nil {
		a.Close()
		b.Close()
	}
	if <-done != nil {
		a.Close()
		b.Close()
	}
}

var _ halfCloser = (*net.UnixConn)(nil)
