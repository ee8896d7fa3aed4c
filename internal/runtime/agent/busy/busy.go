// Package busy lets commands in a workspace hold it awake. The agent keeps the list of
// the holders; the server asks for it before it stops an idle workspace
// (agent.Usage). A workspace cannot reach its server by itself.
//
// A holder is an open connection to a Unix socket in a folder that only the
// workspace's user may enter. So its end, however it comes, ends the holding.
package busy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"codehub/internal/runtime/agent"
)

// Socket is where the agent of a workspace listens.
const Socket = "/tmp/.codehub/busy.sock"

// ErrNoAgent: this is not a workspace, or its agent does not respond.
var ErrNoAgent = errors.New("not in a workspace of codehub, or its agent does not respond")

const (
	// maxConnections limits the holders, against one program's fault.
	maxConnections = 64
	// maxRequest is the longest request, in bytes.
	maxRequest = 4 << 10
	// requestTimeout limits how long a request and its answer may take.
	requestTimeout = 5 * time.Second
)

// request is what a holder sends first: JSON on one line. The answer is one line:
// "ok", or why not.
type request struct {
	What string `json:"what"`
}

const accepted = "ok"

// Listen listens on the socket at path, in a folder of its own, which it makes. A
// socket that an earlier agent has left there is replaced.
func Listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil { // fails on another user's folder
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// Holders is the list of the commands that hold the workspace awake. The zero value is
// an empty list. It is safe for concurrent use.
type Holders struct {
	mu   sync.Mutex
	open map[*agent.Holder]struct{}
}

// List returns the holders, the oldest first.
func (h *Holders) List() []agent.Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []agent.Holder
	for holder := range h.open {
		list = append(list, *holder)
	}
	slices.SortFunc(list, func(a, b agent.Holder) int { return int(a.Since - b.Since) })
	return list[:min(len(list), agent.MaxHolders)]
}

// Add adds a holder until remove is called.
func (h *Holders) Add(what string) (remove func()) {
	holder := &agent.Holder{What: agent.Describe(what), Since: time.Now().Unix()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = map[*agent.Holder]struct{}{}
	}
	h.open[holder] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.open, holder)
	}
}

// Serve accepts holders until l is closed.
func (h *Holders) Serve(l net.Listener, log *slog.Logger) error {
	slots := make(chan struct{}, maxConnections)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			log.Warn("accept a holder failed", "err", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors: it passes
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			fmt.Fprintf(conn, "%d commands hold the workspace awake already\n", maxConnections)
			conn.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			h.hold(conn)
		}()
	}
}

// hold keeps a holder in the list until its connection ends.
func (h *Holders) hold(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadBytes('\n')
	if err != nil {
		return
	}
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		fmt.Fprintln(conn, "the request is not understood")
		return
	}
	defer h.Add(r.What)()
	if _, err := fmt.Fprintln(conn, accepted); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, conn)
}

// Hold holds the workspace awake until release is called. what is shown to its owner.
// socket is that of the agent; Socket outside of tests.
func Hold(ctx context.Context, socket, what string) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	answer, err := ask(conn, what)
	if err == nil && answer != accepted {
		err = errors.New(agent.Describe(answer))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return func() { conn.Close() }, nil
}

func ask(conn net.Conn, what string) (answer string, err error) {
	line, err := json.Marshal(request{What: agent.Describe(what)})
	if err != nil {
		return "", err
	}
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	answer, err = bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	_ = conn.SetDeadline(time.Time{})
	return answer[:len(answer)-1], nil
}
