package sshgate

import (
	"context"
	"io"
	"testing"

	"golang.org/x/crypto/ssh"
)

// unanswered is a connection that leaves a request to open a channel without an answer, also after
// its end, as the library's does if it sends the request while the connection ends.
type unanswered struct {
	ssh.Conn
	asked chan struct{}
	end   chan struct{}
}

func (u unanswered) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	close(u.asked)
	<-u.end
	return nil, nil, io.EOF
}

func TestOpenChannelEndsWithConnection(t *testing.T) {
	t.Parallel()
	u := unanswered{asked: make(chan struct{}), end: make(chan struct{})}
	t.Cleanup(func() { close(u.end) })
	ctx, cancel := context.WithCancel(t.Context())
	c := &connection{ssh: &ssh.ServerConn{Conn: u}, ctx: ctx}
	go func() { <-u.asked; cancel() }()
	if ch, requests := c.openChannel("forwarded-tcpip", nil); ch != nil || requests != nil {
		t.Error("a channel is open")
	}
}
