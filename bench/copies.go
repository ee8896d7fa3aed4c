package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/moby/client"

	"codehub/internal/workspace"
)

// copies relays Docker's API and shows what belongs to one workspace, its container and
// volume, once more for each of many other workspaces, so that a server takes the one
// container for that of each of them.
type copies struct {
	address string // for DOCKER_HOST
	server  *http.Server
	dir     string

	mu     sync.Mutex
	from   string // id of the workspace
	object string // id of its container
	ids    []string
	lists  map[string][]byte // the last copies of a list, by its original
}

// newCopies serves Docker's API at a socket of its own.
func newCopies() (*copies, error) {
	from := client.DefaultDockerHost
	if v := os.Getenv(client.EnvOverrideHost); v != "" {
		from = v
	}
	socket, ok := strings.CutPrefix(from, "unix://")
	if !ok {
		return nil, fmt.Errorf("routes needs Docker at a Unix socket, not at %s", from)
	}
	dir, err := os.MkdirTemp("", "codehub-bench-docker-")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c := &copies{address: "unix://" + path, dir: dir, lists: map[string][]byte{}}
	c.server = &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite:        c.rewrite,
		ModifyResponse: c.modify,
		FlushInterval:  -1,
		ErrorLog:       log.New(io.Discard, "", 0), // requests end with the server
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
	}}
	go func() { _ = c.server.Serve(l) }()
	return c, nil
}

func (c *copies) close() {
	_ = c.server.Close()
	_ = os.RemoveAll(c.dir)
}

// id returns the id of a copy: the workspace's, with other last digits.
func (c *copies) id(from string, copy int) string {
	return from[:len(from)-12] + fmt.Sprintf("c0de%08x", copy)
}

// container returns the container id of a copy.
func (c *copies) container(copy int) string {
	return c.object[:len(c.object)-12] + fmt.Sprintf("c0de%08x", copy)
}

var copied = regexp.MustCompile(`c0de([0-9a-f]{8})`)

// show begins to show copies with these ids.
func (c *copies) show(from string, ids []string) error {
	api, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer api.Close()
	found, err := api.ContainerInspect(context.Background(), workspace.ID(from).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from, c.object, c.ids = from, found.Container.ID, ids
	return nil
}

// copyOf is the context key of the number of the copy that a request is about.
type copyOf struct{}

// rewrite asks for the original instead of a copy.
func (c *copies) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker"
	r.Out.Header.Del("Accept-Encoding")
	c.mu.Lock()
	defer c.mu.Unlock()
	m := copied.FindStringSubmatch(r.Out.URL.Path)
	if m == nil || c.ids == nil {
		return
	}
	n, err := strconv.ParseInt(m[1], 16, 64)
	if err != nil || int(n) >= len(c.ids) {
		return
	}
	r.Out.URL.Path = strings.NewReplacer(c.ids[n], c.from, c.container(int(n)), c.object).Replace(r.Out.URL.Path)
	r.Out = r.Out.WithContext(context.WithValue(r.Out.Context(), copyOf{}, int(n)))
}

// modify puts the copies into lists of containers and volumes, and the ids of a copy into what
// is shown of it.
func (c *copies) modify(resp *http.Response) error {
	n, about := resp.Request.Context().Value(copyOf{}).(int)
	path := resp.Request.URL.Path
	list := strings.HasSuffix(path, "/containers/json") || strings.HasSuffix(path, "/volumes")
	if resp.Request.Method != http.MethodGet || resp.StatusCode != http.StatusOK || !about && !list || !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if about {
		body = c.replace(body, n)
	} else if body, err = c.expand(body); err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

func (c *copies) replace(b []byte, n int) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte(c.from), []byte(c.ids[n])), []byte(c.object), []byte(c.container(n)))
}

// expand adds to a list the copies of all its elements that mention the workspace.
func (c *copies) expand(body []byte) ([]byte, error) {
	key := string(body)
	if done, ok := c.lists[key]; ok {
		return done, nil
	}
	var volumes struct {
		Volumes  []json.RawMessage
		Warnings json.RawMessage
	}
	elements := &volumes.Volumes
	var containers []json.RawMessage
	into := any(&volumes)
	if bytes.HasPrefix(body, []byte("[")) {
		elements, into = &containers, &containers
	}
	if err := json.Unmarshal(body, into); err != nil {
		return nil, err
	}
	for _, e := range *elements {
		if bytes.Contains(e, []byte(c.from)) {
			for n := range c.ids {
				*elements = append(*elements, c.replace(e, n))
			}
		}
	}
	done, err := json.Marshal(into)
	if len(c.lists) > 8 { // the states in them change with time
		clear(c.lists)
	}
	c.lists[key] = done
	return done, err
}
