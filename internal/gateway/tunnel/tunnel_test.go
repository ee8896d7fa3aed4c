package tunnel_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"codehub/internal/gateway/tunnel"
)

// A client that goes away after it has ended its direction ends the relay, although the
// application sends nothing.
func TestClientGoesAwayAfterItsEnd(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		application, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			_ = ws.CloseNow()
			return
		}
		tunnel.Relay(tunnel.New(r.Context(), ws), application.(*net.TCPConn), nil)
	}))
	defer s.Close()
	ws, _, err := websocket.Dial(t.Context(), s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := tunnel.New(t.Context(), ws)
	application, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer application.Close()
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := application.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the application read %d bytes (%v)", n, err)
	}
	_ = client.Close()
	<-done
}
