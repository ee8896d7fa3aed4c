package main

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"
)

func isUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// sameOrigin is code-server's rule: the Origin's host must be the host that was
// asked, by Forwarded's host=, else X-Forwarded-Host, else Host. No Origin passes.
func sameOrigin(r *http.Request) bool {
	raw := r.Header.Get("Origin")
	if raw == "" {
		return true
	}
	origin, err := url.Parse(raw)
	if err != nil || origin.Host == "" {
		return false
	}
	return originHost(origin) == askedHost(r)
}

// originHost is the host as browsers write it, without the scheme's own port.
func originHost(origin *url.URL) string {
	host := strings.ToLower(origin.Host)
	switch origin.Scheme {
	case "http":
		return strings.TrimSuffix(host, ":80")
	case "https":
		return strings.TrimSuffix(host, ":443")
	}
	return host
}

func askedHost(r *http.Request) string {
	if forwarded := r.Header.Get("Forwarded"); forwarded != "" {
		for _, part := range strings.FieldsFunc(forwarded, func(c rune) bool { return c == ';' || c == ',' }) {
			key, value, _ := strings.Cut(part, "=")
			if strings.EqualFold(strings.TrimSpace(key), "host") && value != "" {
				return strings.ToLower(strings.TrimSpace(value))
			}
		}
	}
	if host := r.Header.Get("X-Forwarded-Host"); host != "" {
		return strings.ToLower(strings.TrimSpace(host))
	}
	return strings.ToLower(strings.TrimSpace(r.Host))
}

// webSocket sends every message back as it came. With ?hello=1 the first message
// is the handshake as it arrived. It compresses with context takeover, as
// code-server does.
func (s *server) webSocket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // sameOrigin has decided
		CompressionMode:    websocket.CompressionContextTakeover,
	})
	if err != nil {
		return // Accept has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	ctx := r.Context()

	if r.URL.Query().Get("hello") == "1" {
		hello, err := json.Marshal(receive(r))
		if err != nil || conn.Write(ctx, websocket.MessageText, hello) != nil {
			return
		}
	}
	for {
		kind, message, err := conn.Read(ctx)
		if err != nil {
			return
		}
		if err := conn.Write(ctx, kind, message); err != nil {
			return
		}
	}
}
