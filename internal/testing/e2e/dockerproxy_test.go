package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/workspace"
)

// What Docker does for a workspace.
const (
	madeVolume       = "volume"
	madeContainer    = "container"
	startedContainer = "start"
)

// dockerProxy is a proxy between a server and Docker, by which a test acts after Docker has done
// something for a workspace and before the server learns of it.
type dockerProxy struct {
	host string // for DOCKER_HOST
	// did is called then; ctx ends with the server. nil: it is not.
	did atomic.Pointer[func(ctx context.Context, what, id string)]
}

func newDockerProxy(t *testing.T) *dockerProxy {
	t.Helper()
	socket := filepath.Join(scratch(t), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p := &dockerProxy{host: "unix://" + socket}
	relay := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker" },
		Transport:      &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dialDocker(env.docker.DaemonHost()) }},
		FlushInterval:  -1,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: p.pass,
	}
	web := &httptest.Server{Listener: l, Config: &http.Server{Handler: relay}}
	web.Start()
	t.Cleanup(web.Close)
	return p
}

func (p *dockerProxy) pass(res *http.Response) error {
	did := p.did.Load()
	if did == nil || res.Request.Method != http.MethodPost || res.StatusCode >= http.StatusBadRequest {
		return nil
	}
	ctx := res.Request.Context()
	_, path, _ := strings.Cut(strings.TrimPrefix(res.Request.URL.Path, "/"), "/") // without the version
	what, id := "", ""
	switch {
	case path == "volumes/create":
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		res.Body = io.NopCloser(bytes.NewReader(body))
		var made struct{ Name string }
		if err := json.Unmarshal(body, &made); err != nil {
			return err
		}
		of, _ := workspace.IDOfVolume(made.Name)
		what, id = madeVolume, string(of)
	case path == "containers/create":
		what, id = madeContainer, ofContainer(res.Request.URL.Query().Get("name"))
	case strings.HasPrefix(path, "containers/") && strings.HasSuffix(path, "/start"):
		of := strings.Split(path, "/")[1]
		found, err := env.docker.ContainerInspect(ctx, of, client.ContainerInspectOptions{})
		if err != nil {
			return err
		}
		what, id = startedContainer, ofContainer(strings.TrimPrefix(found.Container.Name, "/"))
	}
	if id != "" {
		(*did)(ctx, what, id)
	}
	return nil
}

// ofContainer returns the workspace whose container has this name, and "" for another container.
func ofContainer(name string) (id string) {
	before, after, _ := strings.Cut(workspace.ID("*").DockerName(), "*")
	id, ok := strings.CutPrefix(name, before)
	if id, whole := strings.CutSuffix(id, after); ok && whole {
		return id
	}
	return ""
}
