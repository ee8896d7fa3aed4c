package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/bus"
	"codehub/internal/bus/activity"
	"codehub/internal/gateway/origin"
	"codehub/internal/running/attach"
	"codehub/internal/running/ports"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// container is a runtime with the agent of one container, which runs in the test's process.
type container struct {
	mu sync.Mutex
	up *runtime.Upstream // nil: none runs
}

func (c *container) Upstream(context.Context, workspace.ID) (runtime.Upstream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up == nil {
		return runtime.Upstream{}, runtime.ErrNotFound
	}
	return *c.up, nil
}

func (c *container) set(up *runtime.Upstream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = up
}

// portsOf returns the ports of the workspaces of cfg, whose container is c.
func portsOf(t *testing.T, cfg *Config, c *container, used *activity.Recorder, most workspace.Visibility) *ports.Service {
	t.Helper()
	db := cfg.Store
	layout, err := origin.Parse(&url.URL{Scheme: "http", Host: "localhost:8080"}, "")
	if err != nil {
		t.Fatal(err)
	}
	a := attach.New(attach.Config{Store: db, Runtime: c, Sessions: cfg.Auth, Activity: used})
	cfg.Hub.Observe(bus.Observer{Changed: func(_ string, id workspace.ID) { a.Changed(id) }, Gap: a.Gap})
	return ports.New(ports.Config{Store: db, Runtime: c, Attacher: a, Layout: layout, Settings: ports.Settings{PortVisibilityMax: string(most), PortShareMax: 24 * time.Hour}})
}

// portEnv is an environment with a running workspace of ann's.
func portEnv(t *testing.T, most workspace.Visibility) (*env, *container, *activity.Recorder, workspace.Workspace) {
	t.Helper()
	agent := httptest.NewServer(inside.NewServer(inside.Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)}))
	t.Cleanup(agent.Close)
	c, used := &container{up: &runtime.Upstream{ContainerID: "c", Addr: agent.Listener.Addr().String(), Agent: agent.Listener.Addr().String(), Secret: "secret"}}, activity.New()
	e := newEnv(t, func(cfg *Config) { cfg.Ports = portsOf(t, cfg, c, used, most) })
	ws := e.workspace(e.ann, "hers")
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, ws.ID)
	return e, c, used, ws
}

func TestPortsAreListedAndShared(t *testing.T) {
	t.Parallel()
	e, c, _, ws := portEnv(t, workspace.VisiblePublic)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	path, me := "/workspaces/"+string(ws.ID)+"/ports", as(e.ann)
	find := func(list api.PortList) (api.Port, bool) {
		for _, p := range list.Ports {
			if p.Port == port {
				return p, true
			}
		}
		return api.Port{}, false
	}
	list := read[api.PortList](t, e.want(200, "", "GET", path, "", me))
	p, ok := find(list)
	if !ok || !list.Running || !list.Known || list.MaxVisibility != "public" || !p.Listening || !p.Local || p.Since == nil || p.VisibleTo != "owner" ||
		p.URL != "http://"+strconv.Itoa(port)+"--"+string(ws.ID)+".localhost:8080/" {
		t.Errorf("%+v, %+v", list, p)
	}
	share := path + "/" + strconv.Itoa(port) + "/share"
	p = read[api.Port](t, e.want(200, "", "PUT", share, `{"with":"public","expires_in_seconds":3600}`, me))
	if !p.Listening || p.Since == nil || p.VisibleTo != "public" || p.ExpiresAt == nil || time.Until(*p.ExpiresAt) > time.Hour+time.Minute || time.Until(*p.ExpiresAt) < time.Hour-time.Minute {
		t.Errorf("%+v", p)
	}
	p = read[api.Port](t, e.want(200, "", "PUT", share, `{"with":"users"}`, me))
	if p.VisibleTo != "users" || p.ExpiresAt != nil {
		t.Errorf("%+v", p)
	}
	for body, code := range map[string]string{
		`{"with":"public"}`:                              "invalid_request",
		`{"with":"public","expires_in_seconds":0}`:       "invalid_request",
		`{"with":"public","expires_in_seconds":86401}`:   "invalid_request",
		`{"with":"users","expires_in_seconds":99999999}`: "invalid_request",
		`{"with":"owner"}`:                               "invalid_request",
		`{"with":"everybody"}`:                           "invalid_request",
		`{"with":"users","for":1}`:                       "invalid_request",
	} {
		e.want(400, code, "PUT", share, body, me)
	}
	for _, bad := range []string{"0", "65536", "x", "03000", strconv.Itoa(runtime.AgentPort), strconv.Itoa(runtime.IDEPort)} {
		e.want(400, "invalid_request", "PUT", path+"/"+bad+"/share", `{"with":"users"}`, me)
		e.want(400, "invalid_request", "GET", path+"/"+bad+"/connect", "", me)
	}
	for _, call := range []string{"GET " + path, "PUT " + share, "DELETE " + share} {
		method, at, _ := strings.Cut(call, " ")
		body := map[bool]string{true: `{"with":"users"}`}[method == "PUT"]
		e.want(403, "forbidden", method, at, body, as(e.eve))
	}
	// A stopped workspace shows what is shared, and is not started.
	c.set(nil)
	e.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, ws.ID)
	list = read[api.PortList](t, e.want(200, "", "GET", path, "", me))
	if p, ok := find(list); list.Running || !ok || p.Listening || p.VisibleTo != "users" {
		t.Errorf("%+v", list)
	}
	e.want(426, "upgrade_required", "GET", path+"/"+strconv.Itoa(port)+"/connect", "", me)
	e.want(409, "not_running", "GET", path+"/"+strconv.Itoa(port)+"/connect", "", append(upgrade(), me)...)
	if got := read[api.Workspace](t, e.want(200, "", "GET", "/workspaces/"+string(ws.ID), "", me)); got.DesiredState != "STANDBY" {
		t.Errorf("it was started: %+v", got)
	}
	e.want(204, "", "DELETE", share, "", me)
	e.want(404, "not_found", "DELETE", share, "", me)
}

func TestSharesAboveTheMaximumAreRefused(t *testing.T) {
	t.Parallel()
	e, _, _, ws := portEnv(t, workspace.VisibleUsers)
	share := "/workspaces/" + string(ws.ID) + "/ports/3000/share"
	e.want(403, "forbidden", "PUT", share, `{"with":"public","expires_in_seconds":60}`, as(e.ann))
	e.want(200, "", "PUT", share, `{"with":"users"}`, as(e.ann))
}

// upgrade is a request for a WebSocket.
func upgrade() []with {
	return []with{header("Connection", "Upgrade"), header("Upgrade", "websocket"), header("Sec-WebSocket-Version", "13"), header("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")}
}

// connect returns a client of ann's, and how it connects to a port.
func (e *env) tokenClient(p person) (*client.Client, string) {
	e.t.Helper()
	token, secret, err := e.Auth.CreateToken(e.t.Context(), auth.Identity{Caller: p.Caller}, "x", nil, auth.TokenLimits{})
	if err != nil {
		e.t.Fatal(err)
	}
	c, err := client.New(e.HTTP.URL, secret)
	if err != nil {
		e.t.Fatal(err)
	}
	return c, token.ID
}

// A connection carries bytes both ways, can end one direction before the other, counts as
// activity only when its client sends, and ends with the token.
func TestConnectPort(t *testing.T) {
	t.Parallel()
	e, _, used, ws := portEnv(t, workspace.VisibleOwner)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, "hello ")
				_, _ = io.Copy(c, c) // including the end of the input
			}()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	c, token := e.tokenClient(e.ann)
	conn, err := c.ConnectPort(t.Context(), string(ws.ID), port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	greeting := make([]byte, 6)
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != "hello " {
		t.Fatalf("%q %v", greeting, err)
	}
	if last, ok := used.Last(ws.ID); ok {
		t.Errorf("what the workspace sends counts as use: %v", last)
	}
	large := strings.Repeat("x", 3<<20)
	go func() {
		_, _ = io.WriteString(struct{ io.Writer }{conn}, large[:1<<20])
		_, _ = io.WriteString(struct{ io.Writer }{conn}, large[1<<20:])
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != large {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if last, _ := used.Last(ws.ID); last.Kind != activity.Client {
		t.Errorf("what the client sends counts as %v", last)
	}
	// Many at once.
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			conn, err := c.ConnectPort(t.Context(), string(ws.ID), port)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "you")
			_ = conn.CloseWrite()
			if got, err := io.ReadAll(conn); err != nil || string(got) != "hello you" {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	all.Wait()
	var refused *client.Error
	silent, _ := harness.ReservePort(t)
	if _, err := c.ConnectPort(t.Context(), string(ws.ID), silent); !errors.As(err, &refused) || refused.Code != "unavailable" || refused.Details["port"] == nil {
		t.Errorf("nothing listens: %v", err)
	}
	eves, _ := e.tokenClient(e.eve)
	if _, err := eves.ConnectPort(t.Context(), string(ws.ID), port); client.CodeOf(err) != "forbidden" {
		t.Errorf("another user: %v", err)
	}
	for _, from := range []string{"http://evil.example", e.HTTP.URL, "null"} {
		e.want(403, "cross_origin", "GET", "/workspaces/"+string(ws.ID)+"/ports/"+strconv.Itoa(port)+"/connect", "", append(upgrade(), as(e.ann), header("Origin", from))...)
	}
	open, err := c.ConnectPort(t.Context(), string(ws.ID), port)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := e.Auth.DeleteToken(t.Context(), e.ann.Caller, token); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := io.ReadAll(open); ended <- err }()
	harness.Eventually(t, "the connection ends with its token", func() bool {
		select {
		case err := <-ended:
			return err != nil
		default:
			return false
		}
	})
}
