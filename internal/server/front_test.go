package server

import (
	"net/url"
	"testing"

	"codehub/internal/gateway/origin"
	"codehub/internal/server/config"
)

func TestOwnHosts(t *testing.T) {
	t.Parallel()
	public := &url.URL{Scheme: "https", Host: "code.example.com"}
	layout, err := origin.Parse(public, "https://*.ws.example.com")
	try(t, err)
	own := ownHost(config.Config{PublicURL: public, Layout: layout})
	for host, want := range map[string]bool{
		"code.example.com": true, "CODE.example.com:443": true, "0b54a3a6-0d3f-4d5e-9f3c-1d9c9a3b7f10.ws.example.com": true,
		"127.0.0.1:8080": false, "[::1]:8080": false, "evil.example": false, "": false,
	} {
		if own(host) != want {
			t.Errorf("%q: %v", host, own(host))
		}
	}
	public = &url.URL{Scheme: "http", Host: "127.0.0.1:8080"}
	layout, err = origin.Parse(public, "path")
	try(t, err)
	if own = ownHost(config.Config{PublicURL: public, Layout: layout}); !own("127.0.0.1:8080") || own("127.0.0.1:9090") {
		t.Error("a loopback address as CODEHUB_URL")
	}
}

// Identity providers know localhost, not the name of codehub below it.
func TestCallbackURL(t *testing.T) {
	t.Parallel()
	for main, want := range map[string]string{
		"http://codehub.localhost:8080": "http://localhost:8080",
		"https://code.example.com":      "https://code.example.com",
		"https://codehub.example.com":   "https://codehub.example.com",
	} {
		u, err := url.Parse(main)
		try(t, err)
		layout, err := origin.Parse(u, map[bool]string{true: "path"}[u.Scheme == "https"])
		try(t, err)
		if got := callbackURL(config.Config{PublicURL: u, Layout: layout}).String(); got != want || u.String() != main {
			t.Errorf("%s: %s", main, got)
		}
	}
}
