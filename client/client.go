// Package client talks to a codehub server's HTTP API.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"codehub/api"
)

// Client is a client of one server, with the credential of one user. It is
// safe for concurrent use.
type Client struct {
	base  string // with /api/v1
	token string
	http  *http.Client
	agent string

	serverVersion func(string) // optional
}

// Option configures New.
type Option func(*Client)

// WithHTTPClient uses h for the requests, for example with a cookie jar for
// Login. It should have no Timeout, which would cut streams.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithUserAgent sets the User-Agent of the requests.
func WithUserAgent(s string) Option { return func(c *Client) { c.agent = s } }

// WithServerVersion calls seen with the server's version whenever a response names it.
func WithServerVersion(seen func(version string)) Option {
	return func(c *Client) { c.serverVersion = seen }
}

// maxAnswer bounds the size of a response that is not a stream, in bytes.
const maxAnswer = 64 << 20

// New returns a client of the server at serverURL (its CODEHUB_URL). It sends
// token (an API token) unless that is empty.
func New(serverURL, token string, opts ...Option) (*Client, error) {
	u, err := url.Parse(strings.TrimSpace(serverURL))
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q is not a server's address like http://localhost:8080", serverURL)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("the server's address %q must have no user, query or fragment", u.Redacted())
	}
	c := &Client{base: strings.TrimRight(u.String(), "/") + "/api/v1", token: token, http: &http.Client{Transport: newTransport()}, agent: "codehub-client"}
	for _, o := range opts {
		o(c)
	}
	// A redirect would send the token to another address.
	h := *c.http
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &h
	return c, nil
}

// Error is an error response of the server.
type Error struct {
	Status     int
	Code       string         // for machines
	Message    string         // for users
	Details    map[string]any // the keys depend on Code
	RetryAfter time.Duration  // 0 if the server sent none
	RequestID  string
}

func (e *Error) Error() string { return e.Message }

// CodeOf returns the code of the server's error in err's chain, or "".
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// request sends one request. It returns a successful response, whose body the
// caller closes.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	return c.send(ctx, method, path, query, nil, in)
}

// send is request with more headers.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, header http.Header, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	u := c.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("User-Agent", c.agent)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set(api.TokenHeader, c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil && ctx.Err() == nil {
		err = c.unreachable(err)
	}
	if err != nil {
		return nil, err
	}
	if v := resp.Header.Get(api.VersionHeader); v != "" && c.serverVersion != nil {
		c.serverVersion(v)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
}

func readError(resp *http.Response) error {
	e := &Error{Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-Id")}
	if secs, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && secs > 0 {
		e.RetryAfter = time.Duration(secs) * time.Second
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var said api.Error
	if json.Unmarshal(b, &said) != nil || said.Code == "" || said.Message == "" { // code-server answers with an error alone
		said = api.Error{Code: "unexpected_answer", Message: fmt.Sprintf("the server answered %s, which is not codehub's API", resp.Status)}
	}
	e.Code, e.Message, e.Details = said.Code, said.Message, said.Details
	return e
}

// pages reads a list page by page: one requests the page after cursor and returns
// the cursor of the next one, "" at the end.
func pages(one func(query url.Values) (next string, err error)) error {
	query := url.Values{"limit": {"200"}}
	for {
		next, err := one(query)
		if err != nil || next == "" {
			return err
		}
		query.Set("cursor", next)
	}
}

// call sends in as JSON and decodes the response into out; both may be nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	resp, err := c.request(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		return err
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("read the answer of %s %s: %w", method, path, err)
	}
	return nil
}

// ask is call with a result of type T.
func ask[T any](ctx context.Context, c *Client, method, path string, query url.Values, in any) (out T, err error) {
	err = c.call(ctx, method, path, query, in, &out)
	return out, err
}

// all reads all pages of a list; of returns the content of a page and the cursor of the next one.
func all[L, T any](ctx context.Context, c *Client, path string, of func(L) (part []T, next string)) ([]T, error) {
	list := []T{}
	err := pages(func(query url.Values) (string, error) {
		page, err := ask[L](ctx, c, http.MethodGet, path, query, nil)
		part, next := of(page)
		list = append(list, part...)
		return next, err
	})
	return list, err
}
