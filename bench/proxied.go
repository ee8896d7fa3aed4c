package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"

	"codehub/internal/testing/e2e/proc"
)

// proxied is what clients of a workspace reach it by: codehub, or a rival in front of the
// same container.
type proxied struct {
	name    string
	address string   // host:port on this machine
	host    string   // of the requests' header
	headers []string // "Name: value"
}

func (p *proxied) url(path string) string { return "http://" + p.address + path }

// visitor is a user with a session on the main origin.
type visitor struct {
	main    *url.URL // of the server, at the name that has sessions
	address string   // of the server, host:port on this machine
	session *http.Cookie
}

// logIn logs a user in as a browser does.
func logIn(ctx context.Context, s *proc.Server, name, password string) (*visitor, error) {
	main, err := url.Parse(strings.Replace(s.URL, "://localhost", "://codehub.localhost", 1))
	if err != nil {
		return nil, err
	}
	v := &visitor{main: main, address: net.JoinHostPort("127.0.0.1", main.Port())}
	body := fmt.Sprintf(`{"username": %q, "password": %q}`, name, password)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, main.String()+"/api/v1/login", strings.NewReader(body))
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
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, v.address)
		},
	}
}

// open opens a workspace as the user's browser does, by a ticket, and returns how the
// browser's further requests look.
func (v *visitor) open(ctx context.Context, id string) (*proxied, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	jar.SetCookies(v.main, []*http.Cookie{v.session})
	browser := &http.Client{Jar: jar, Transport: v.transport()}
	defer browser.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.main.String()+"/w/"+id+"/", nil)
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
	if resp.StatusCode != http.StatusOK || at.Host == v.main.Host {
		return nil, fmt.Errorf("open the workspace: %s: %s", at, resp.Status)
	}
	var cookies []string
	for _, c := range jar.Cookies(at) {
		cookies = append(cookies, c.Name+"="+c.Value)
	}
	return &proxied{
		name: "codehub", address: v.address, host: at.Host,
		headers: []string{"Cookie: " + strings.Join(cookies, "; "), "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"},
	}, nil
}
