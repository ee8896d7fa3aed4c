package inside

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"codehub/internal/runtime/agent"
)

const (
	// acceptWithin is how long a connection to a listener waits to be fetched.
	acceptWithin = 10 * time.Second
	// maxWaiting limits the connections that wait, of all listeners.
	maxWaiting = 256
)

// waiting holds the connections to listeners that have not been fetched yet.
type waiting struct {
	mu sync.Mutex
	by map[string]net.Conn
}

// put keeps a connection and returns its ID. It is closed if nothing fetches it.
func (q *waiting) put(c net.Conn) (id string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.by) >= maxWaiting {
		return "", false
	}
	if q.by == nil {
		q.by = map[string]net.Conn{}
	}
	id = rand.Text()
	q.by[id] = c
	time.AfterFunc(acceptWithin, func() {
		if c := q.take(id); c != nil {
			c.Close()
		}
	})
	return id, true
}

// take returns the connection and forgets it; nil if there is none.
func (q *waiting) take(id string) net.Conn {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.by[id]
	delete(q.by, id)
	return c
}

// sockets holds the listeners on Unix sockets.
type sockets struct {
	mu sync.Mutex
	by map[string]net.Listener // by path
}

// listen listens on a socket. If replace is true, it first ends the listener that is there. Only
// the first Close of a listener removes its file, so that of the former leaves the new one's.
func (s *sockets) listen(path string, replace bool) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if former := s.by[path]; former != nil && replace {
		former.Close()
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if s.by == nil {
		s.by = map[string]net.Listener{}
	}
	s.by[path] = l
	return l, nil
}

// close ends a listener and forgets it.
func (s *sockets) close(path string, l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.Close()
	if s.by[path] == l {
		delete(s.by, path)
	}
}

// listen listens for as long as the conversation is open, and reports each
// connection.
func (s *Server) listen(w http.ResponseWriter, r *http.Request) {
	network, address, err := addressOf(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	var l net.Listener
	if network == "unix" {
		l, err = s.sockets.listen(address, r.URL.Query().Get("replace") == "true")
	} else {
		l, err = net.Listen(network, address)
	}
	if err != nil {
		refuse(w, http.StatusConflict, err)
		return
	}
	defer s.sockets.close(address, l)
	if network == "unix" {
		// Only the workspace's user: a forwarded agent signs for its owner.
		if err := os.Chmod(address, 0o600); err != nil {
			refuse(w, http.StatusConflict, err)
			return
		}
	}
	conn, ok := s.converse(w, r)
	if !ok {
		return
	}
	defer conn.Close()
	frames := agent.NewFrameWriter(conn)
	if err := event(frames, agent.Listening{Address: l.Addr().String()}); err != nil {
		return
	}
	go func() {
		defer l.Close()
		_, _ = io.Copy(io.Discard, conn) // until the server closes it
	}()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.cfg.Log.Debug("accept a forwarded connection failed", "err", err)
			time.Sleep(10 * time.Millisecond) // out of file descriptors
			continue
		}
		id, ok := s.waiting.put(c)
		if !ok {
			c.Close()
			continue
		}
		if err := event(frames, agent.Accepted{ID: id, Remote: c.RemoteAddr().String()}); err != nil {
			if c := s.waiting.take(id); c != nil {
				c.Close()
			}
			return
		}
	}
}

func event(to *agent.FrameWriter, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return to.Write(agent.FrameEvent, raw)
}

// accept joins the conversation with a connection that waits.
func (s *Server) accept(w http.ResponseWriter, r *http.Request) {
	c := s.waiting.take(r.URL.Query().Get("id"))
	if c == nil {
		refuse(w, http.StatusNotFound, errors.New("the connection has gone"))
		return
	}
	defer c.Close()
	conn, ok := s.converse(w, r)
	if !ok {
		return
	}
	defer conn.Close()
	join(conn, c, s.cfg.resetInterval())
}
