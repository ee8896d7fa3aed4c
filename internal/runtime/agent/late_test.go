package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
)

// past is a context whose deadline has passed, unnoticed by the connection.
type past struct{ context.Context }

func (past) Err() error { return context.DeadlineExceeded }

// An agent whose answer arrives at the last moment counts as one that does not respond, as one
// whose answer arrives later.
func TestAnswerAtTheDeadline(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
			_, err = http.ReadRequest(bufio.NewReader(conn))
		}
		if err == nil {
			_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		}
		answered <- err
	}()
	t.Cleanup(func() { l.Close() })
	c := &Client{Addr: l.Addr().String(), Secret: "secret"}
	if _, _, err := c.request(past{t.Context()}, http.MethodPost, PathHello, nil, nil, maxAnswer, false); !errors.Is(err, ErrUnreachable) {
		t.Errorf("request: %v, want that the agent does not respond", err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
