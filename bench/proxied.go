package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"time"

	"codehub/internal/e2e/proc"
)

// proxied is what clients of a workspace reach it by: codehub, or a rival in front of the
// same container.
type proxied struct {
	name    string
	scheme  string
	address string   // host:port on this machine
	host    string   // of the requests' header
	headers []string // "Name: value"

	// pids lists the processes of the proxy.
	pids func() ([]int, error)
	// restart ends the proxy and starts it again on the same address.
	restart func(context.Context) error
}

func (p *proxied) url(path string) string { return p.scheme + "://" + p.address + path }

// bareClient sends each request on the given address and accepts any certificate.
var bareClient = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}

// request sends one request and returns an error for any status but 200 and 204.
func (p *proxied) request(ctx context.Context, method, path string, body io.Reader) error {
	req, err := http.NewRequestWithContext(ctx, method, p.url(path), body)
	if err != nil {
		return err
	}
	req.Host = p.host
	for _, h := range p.headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := bareClient.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return nil
}

// await waits until the proxy relays requests.
func (p *proxied) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := p.request(ctx, http.MethodGet, "/healthz", nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// head returns the beginning of a request as sent on a connection, with these further
// headers.
func (p *proxied) head(method, path string, more ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, p.host)
	for _, h := range append(more, p.headers...) {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// visitor is a user with a session on the main origin.
type visitor struct {
	server  *proc.Server
	address string // of the server, host:port on this machine
	session *http.Cookie
}

// logIn logs a user in as a browser does.
func logIn(ctx context.Context, s *proc.Server, name, password string) (*visitor, error) {
	main, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	v := &visitor{server: s, address: net.JoinHostPort("127.0.0.1", main.Port())}
	body := fmt.Sprintf(`{"username": %q, "password": %q}`, name, password)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/api/v1/login", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := v.transport().RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	list := resp.Cookies()
	if resp.StatusCode != http.StatusOK || len(list) == 0 {
		return nil, fmt.Errorf("log in as %s: %s", name, resp.Status)
	}
	v.session = list[0]
	return v, nil
}

// transport connects to this one server, for requests to every host.
func (v *visitor) transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, v.address)
		},
	}
}

// open opens a workspace as the user's browser does, by a ticket, and returns how the
// browser's further requests look.
func (v *visitor) open(ctx context.Context, id string) (*proxied, error) {
	main, err := url.Parse(v.server.URL)
	if err != nil {
		return nil, err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	jar.SetCookies(main, []*http.Cookie{v.session})
	browser := &http.Client{Jar: jar, Transport: v.transport()}
	defer browser.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+"/w/"+id+"/", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/html")
	req.Header.Set("Sec-Fetch-Mode", "navigate")
	req.Header.Set("Sec-Fetch-Dest", "document")
	resp, err := browser.Do(req)
	if err != nil {
		return nil, fmt.Errorf("open the workspace: %w", err)
	}
	defer resp.Body.Close()
	at := resp.Request.URL
	if resp.StatusCode != http.StatusOK || at.Host == main.Host {
		return nil, fmt.Errorf("open the workspace: %s: %s", at, resp.Status)
	}
	var cookies []string
	for _, c := range jar.Cookies(at) {
		cookies = append(cookies, c.Name+"="+c.Value)
	}
	return &proxied{
		name: "codehub", scheme: main.Scheme, address: v.address, host: at.Host,
		headers: []string{"Cookie: " + strings.Join(cookies, "; "), "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"},
		pids:    func() ([]int, error) { return []int{v.server.Pid()}, nil },
		restart: func(ctx context.Context) error {
			v.server.Stop()
			return v.server.Start(ctx)
		},
	}, nil
}
