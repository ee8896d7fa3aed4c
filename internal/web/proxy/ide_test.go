package proxy

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"codehub/internal/runtime"
)

// ide is a fake code-server: it checks the same secret and the Origin of WebSockets.
type ide struct {
	server  *httptest.Server
	secret  string
	refused atomic.Int64 // requests without the secret
	served  atomic.Int64
	sockets atomic.Int64 // open WebSockets
	handle  http.HandlerFunc
	over    chan struct{} // closed when it stops
	once    sync.Once

	mu   sync.Mutex
	last received
}

// received is a request as the IDE received it.
type received struct {
	Method, URI, Host string
	Header            http.Header
}

// newIDE listens on addr, which an earlier one may have used.
func newIDE(t testing.TB, secret, addr string) *ide {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	i := &ide{secret: secret, over: make(chan struct{})}
	i.server = httptest.NewUnstartedServer(i)
	i.server.Listener.Close()
	i.server.Listener = listener
	i.server.Start()
	t.Cleanup(i.stop)
	return i
}

// stop ends it as the end of its container does.
func (i *ide) stop() {
	i.once.Do(func() { close(i.over) })
	i.server.CloseClientConnections()
	i.server.Close()
}

func (i *ide) addr() string { return i.server.Listener.Addr().String() }

func (i *ide) upstream(container string) runtime.Upstream {
	return runtime.Upstream{ContainerID: container, Addr: i.addr(), Secret: i.secret}
}

func (i *ide) received() received {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.last
}

func (i *ide) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.last = received{r.Method, r.RequestURI, r.Host, r.Header.Clone()}
	i.mu.Unlock()
	if isWebSocket(r.Header) && !sameOrigin(r) {
		http.Error(w, "wrong origin", http.StatusForbidden)
		return
	}
	if c, err := r.Cookie(runtime.SecretCookie); err != nil || c.Value != i.secret {
		i.refused.Add(1)
		http.Error(w, "who are you", http.StatusUnauthorized)
		return
	}
	i.served.Add(1)
	if i.handle != nil {
		i.handle(w, r)
		return
	}
	if isWebSocket(r.Header) {
		i.echo(w, r)
		return
	}
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"uri": r.RequestURI, "body": n})
}

// sameOrigin is code-server's check.
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	host := r.Header.Get("X-Forwarded-Host")
	if host == "" {
		host = r.Host
	}
	return err == nil && u.Host == host
}

func (i *ide) echo(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // sameOrigin has checked it
		CompressionMode:    websocket.CompressionContextTakeover,
	})
	if err != nil {
		return
	}
	i.sockets.Add(1)
	defer i.sockets.Add(-1)
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if err := conn.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}
