package origin_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/gateway/origin"
	"codehub/internal/workspace"
)

const id = workspace.ID("0198c0de-0000-7000-8000-00000000000a")

func public(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func layout(t testing.TB, main, setting string) origin.Layout {
	t.Helper()
	l, err := origin.Parse(public(t, main), setting)
	if err != nil {
		t.Fatalf("Parse(%s, %q): %v", main, setting, err)
	}
	return l
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		main, setting        string
		pattern, of, portURL string
	}{
		{"http://localhost:8080", "", "http://*.localhost:8080", "http://ID.localhost:8080", "http://3000--ID.localhost:8080"},
		{"http://codehub.localhost:8080", "", "http://*.localhost:8080", "http://ID.localhost:8080", "http://3000--ID.localhost:8080"},
		{"http://localhost", "", "http://*.localhost", "http://ID.localhost", "http://3000--ID.localhost"},
		{"http://127.0.0.1:8080", "", "http://*.localhost:8080", "http://ID.localhost:8080", "http://3000--ID.localhost:8080"},
		{"http://[::1]:8080", "", "http://*.localhost:8080", "http://ID.localhost:8080", "http://3000--ID.localhost:8080"},
		{"https://localhost", "", "https://*.localhost", "https://ID.localhost", "https://3000--ID.localhost"},
		{"https://example.com", "https://*.example.com", "https://*.example.com", "https://ID.example.com", "https://3000--ID.example.com"},
		{"https://code.example.com", "https://*.example.com", "https://*.example.com", "https://ID.example.com", "https://3000--ID.example.com"},
		{"https://code.example.com", "HTTPS://*.Example.COM/", "https://*.example.com", "https://ID.example.com", "https://3000--ID.example.com"},
		{"https://code.example.com", "https://*.example.com:443", "https://*.example.com", "https://ID.example.com", "https://3000--ID.example.com"},
		{"https://code.example.com", "https://*-ws.example.com", "https://*-ws.example.com", "https://ID-ws.example.com", "https://3000--ID-ws.example.com"},
		{"https://code.example.com", "https://ws-*.example.com:8443", "https://ws-*.example.com:8443", "https://ws-ID.example.com:8443", "https://ws-3000--ID.example.com:8443"},
		{"https://code.example.com", "https://a-*-b.example.net", "https://a-*-b.example.net", "https://a-ID-b.example.net", "https://a-3000--ID-b.example.net"},
		{"https://192.0.2.1", "https://*.example.com", "https://*.example.com", "https://ID.example.com", "https://3000--ID.example.com"},
		{"https://code.example.com", "path", "", "https://code.example.com", "https://code.example.com"},
		{"http://192.0.2.1:8080", "path", "", "http://192.0.2.1:8080", "http://192.0.2.1:8080"},
		{"http://localhost:8080", "path", "", "http://localhost:8080", "http://localhost:8080"},
	} {
		l := layout(t, tc.main, tc.setting)
		if l.PathMode() != (tc.pattern == "") || l.Pattern() != tc.pattern {
			t.Errorf("%s, %q: the pattern is %q", tc.main, tc.setting, l.Pattern())
		}
		of := func(s string) string { return strings.ReplaceAll(s, "ID", string(id)) }
		if got := l.URL(workspace.Host{ID: id}); got != of(tc.of) {
			t.Errorf("%s, %q: the workspace is at %s, want %s", tc.main, tc.setting, got, of(tc.of))
		}
		if got := l.URL(workspace.Host{ID: id, Port: 3000}); got != of(tc.portURL) {
			t.Errorf("%s, %q: the port is at %s, want %s", tc.main, tc.setting, got, of(tc.portURL))
		}
		if l.Main() != tc.main {
			t.Errorf("the main origin of %s is %s", tc.main, l.Main())
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, main, setting string }{
		{"unset on a domain", "https://code.example.com", ""},
		{"unset on an address", "http://192.0.2.1:8080", ""},
		{"unset below localhost", "http://code.localhost:8080", ""},
		{"no scheme", "https://code.example.com", "*.example.com"},
		{"another scheme", "https://code.example.com", "http://*.example.com"},
		{"another scheme, ftp", "https://code.example.com", "ftp://*.example.com"},
		{"a path", "https://code.example.com", "https://*.example.com/w"},
		{"a query", "https://code.example.com", "https://*.example.com?x"},
		{"a user", "https://code.example.com", "https://u@*.example.com"},
		{"no star", "https://code.example.com", "https://ws.example.com"},
		{"the main origin", "https://code.example.com", "https://code.example.com"},
		{"the main origin with its port", "https://code.example.com", "https://code.example.com:443/"},
		{"two stars", "https://code.example.com", "https://*-*.example.com"},
		{"two stars in two parts", "https://code.example.com", "https://*.*.example.com"},
		{"star in the second part", "https://code.example.com", "https://ws.*.example.com"},
		{"star for the domain", "https://code.example.com", "https://*"},
		{"star for the domain with a port", "https://code.example.com", "https://*:8080"},
		{"star in the port", "https://code.example.com", "https://ws.example.com:*"},
		{"an address as the domain", "https://code.example.com", "https://*.192.0.2.1"},
		{"an IPv6 address", "https://code.example.com", "https://[*::1]"},
		{"an empty part", "https://code.example.com", "https://*..example.com"},
		{"a hyphen at the end of the part", "https://code.example.com", "https://*-.example.com"},
		{"a hyphen at the start of the part", "https://code.example.com", "https://-*.example.com"},
		{"port 0", "https://code.example.com", "https://*.example.com:0"},
		{"port 65536", "https://code.example.com", "https://*.example.com:65536"},
		{"a port with a zero", "https://code.example.com", "https://*.example.com:0443"},
		{"no ASCII", "https://code.example.com", "https://*.코드.example"},
		{"a letter that lower-cases to ASCII", "https://code.example.com", "https://*.\u212aode.example"},
		{"a space", "https://code.example.com", "https://* .example.com"},
		{"a line break", "https://code.example.com", "https://*.example.com\n"},
		{"too long a suffix", "https://code.example.com", "https://*-a-suffix-that-is-long.example.com"},
		{"a main host that is a workspace's", "https://" + string(id) + ".example.com", "https://*.example.com"},
		{"a main host that is a port's", "https://80--" + string(id) + ".example.com", "https://*.example.com"},
		{"a main host that is not ASCII", "https://코드.example", "https://*.example.com"},
		{"a main host that is not ASCII, path mode", "https://코드.example", "path"},
		{"path in other letters", "https://code.example.com", "PATH"},
	} {
		_, err := origin.Parse(public(t, tc.main), tc.setting)
		var e *origin.Error
		if !errors.As(err, &e) || e.Why == "" || e.Do == "" || strings.Contains(e.Error(), "\n") {
			t.Errorf("%s: Parse(%s, %q): %v, want an Error of one line", tc.name, tc.main, tc.setting, err)
		}
	}
	// The errors that existing installations meet name both choices.
	for _, setting := range []string{"", "https://code.example.com"} {
		_, err := origin.Parse(public(t, "https://code.example.com"), setting)
		if err == nil || !strings.Contains(err.Error(), "https://*.ws.code.example.com") || !strings.Contains(err.Error(), "path") {
			t.Errorf("%q: %v", setting, err)
		}
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	const ws = string(id)
	local, domain := layout(t, "http://localhost:8080", ""), layout(t, "https://code.example.com", "https://*-ws.example.com")
	behind := layout(t, "https://example.com", "https://*.example.com:8443")
	path, own := layout(t, "https://code.example.com", "path"), layout(t, "http://codehub.localhost:8080", "")
	main, unknown, ide := origin.Place{Kind: origin.Main}, origin.Place{}, origin.Place{Kind: origin.Workspace, Host: workspace.Host{ID: id}}
	port := func(n int) origin.Place {
		return origin.Place{Kind: origin.Workspace, Host: workspace.Host{ID: id, Port: n}}
	}
	for _, tc := range []struct {
		l    origin.Layout
		host string
		want origin.Place
	}{
		{local, "localhost:8080", main},
		{local, "LOCALHOST:8080", main},
		{local, "localhost.:8080", main},
		{local, "127.0.0.1:8080", main},
		{local, "[::1]:8080", main},
		{local, "[::1]", main},
		{local, "[0:0:0:0:0:0:0:1]:8080", main},
		{local, "[::ffff:127.0.0.1]:8080", main},
		{local, "127.0.0.1", main},
		{local, "localhost:9999", main}, // as a tunnel's other end sees it
		{local, ws + ".localhost:8080", ide},
		{local, strings.ToUpper(ws) + ".LocalHost:8080", ide},
		{local, ws + ".localhost.:8080", ide},
		{local, "3000--" + ws + ".localhost:8080", port(3000)},
		{local, "1--" + ws + ".localhost:8080", port(1)},
		{local, "65535--" + ws + ".localhost:8080", port(65535)},

		{local, "", unknown},
		{local, ":8080", unknown},
		{local, "localhost:", unknown},
		{local, "localhost:8080:8080", unknown},
		{local, "localhost..:8080", unknown},
		{local, "[::1]x:8080", unknown},
		{local, "[::1", unknown},
		{local, "[::1%lo]:8080", unknown},
		{local, "[127.0.0.1]:8080", unknown},
		{local, "[::2]:8080", unknown},
		{local, "evil.example:8080", unknown},
		{local, "localhost.evil.example:8080", unknown},
		{local, "evil-localhost:8080", unknown},
		{local, "192.0.2.1:8080", unknown},
		{local, ws + ".localhost", unknown},
		{local, ws + ".localhost:8081", unknown},
		{local, ws + ".localhost.evil.example:8080", unknown},
		{local, "x." + ws + ".localhost:8080", unknown},
		{local, "x" + ws + ".localhost:8080", unknown},
		{local, ws[1:] + ".localhost:8080", unknown},
		{local, strings.ReplaceAll(ws, "-", "") + ".localhost:8080", unknown},
		{local, ".localhost:8080", unknown},
		{local, "0--" + ws + ".localhost:8080", unknown},
		{local, "080--" + ws + ".localhost:8080", unknown},
		{local, "65536--" + ws + ".localhost:8080", unknown},
		{local, "99999999--" + ws + ".localhost:8080", unknown},
		{local, "+80--" + ws + ".localhost:8080", unknown},
		{local, "-80--" + ws + ".localhost:8080", unknown},
		{local, "--" + ws + ".localhost:8080", unknown},
		{local, "80-" + ws + ".localhost:8080", unknown},
		{local, "80--80--" + ws + ".localhost:8080", unknown},
		{local, "80---" + ws + ".localhost:8080", unknown},
		{local, "\u212a.localhost:8080", unknown},
		{local, "user@localhost:8080", unknown},
		{local, "localhost:8080/", unknown},
		{local, "localhost:8080\x00", unknown},
		{local, "local\thost:8080", unknown},
		{local, "localhost :8080", unknown},

		{domain, "code.example.com", main},
		{domain, "code.example.com:443", main},
		{domain, "Code.Example.Com.", main},
		{domain, "127.0.0.1:8080", main},
		{domain, ws + "-ws.example.com", ide},
		{domain, ws + "-ws.example.com:443", ide},
		{domain, "8080--" + ws + "-WS.EXAMPLE.COM.", port(8080)},
		{domain, ws + ".example.com", unknown},
		{domain, ws + "-ws.example.com:80", unknown},
		{domain, "code.example.com:80", unknown},
		{domain, "example.com", unknown},
		{domain, "xcode.example.com", unknown},
		{domain, "code.example.com.evil.example", unknown},
		{domain, ws + ".localhost", unknown},

		{behind, "example.com", main},
		{behind, ws + ".example.com:8443", ide},
		{behind, ws + ".example.com", unknown},
		{behind, "example.com:8443", unknown},

		{own, "codehub.localhost:8080", main},
		{own, "codehub.localhost:9999", main},
		{own, "localhost:8080", main},
		{own, ws + ".localhost:8080", ide},
		{own, "x.codehub.localhost:8080", unknown},
		{local, "codehub.localhost:8080", unknown},

		{path, "code.example.com", main},
		{path, "[::1]:8080", main},
		{path, ws + ".example.com", unknown},
		{path, ws + ".localhost:8080", unknown},
		{origin.Layout{}, "localhost", unknown},
	} {
		if got := tc.l.Route(tc.host); got != tc.want {
			t.Errorf("Route(%q) with %q = %+v, want %+v", tc.host, tc.l.Pattern(), got, tc.want)
		}
	}
}

func TestFromLoopback(t *testing.T) {
	t.Parallel()
	local := layout(t, "http://codehub.localhost:8080", "")
	for host, want := range map[string]string{
		"localhost:8080": "http://codehub.localhost:8080", "LOCALHOST.:8080": "http://codehub.localhost:8080", "127.0.0.1:8080": "http://codehub.localhost:8080",
		"[::1]:9999": "http://codehub.localhost:9999", "localhost": "http://codehub.localhost",
		"codehub.localhost:8080": "", string(id) + ".localhost:8080": "", "evil.example": "", "": "",
	} {
		if got, ok := local.FromLoopback(host); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", host, got, ok)
		}
	}
	for _, main := range []string{"http://localhost:8080", "https://localhost:8080"} {
		if got, ok := layout(t, main, "").FromLoopback("localhost:8080"); ok {
			t.Errorf("%s: %q", main, got)
		}
	}
	if got, ok := layout(t, "https://code.example.com", "path").FromLoopback("127.0.0.1:8080"); ok {
		t.Errorf("behind a proxy: %q", got)
	}
}

func TestSecure(t *testing.T) {
	t.Parallel()
	l := layout(t, "https://code.example.com", "https://*-ws.example.com:8443")
	for host, want := range map[string]string{
		"code.example.com": "https://code.example.com", "Code.example.com:80": "https://code.example.com", "code.example.com:8080": "https://code.example.com",
		string(id) + "-ws.example.com":             "https://" + string(id) + "-ws.example.com:8443",
		"80--" + string(id) + "-ws.example.com:80": "https://80--" + string(id) + "-ws.example.com:8443",
		"evil.example": "", "": "", "127.0.0.1": "", "x-ws.example.com": "",
	} {
		got, ok := l.Secure(host)
		if ok != (want != "") || ok && got != want {
			t.Errorf("Secure(%q) = %q, %v, want %q", host, got, ok, want)
		}
	}
	if _, ok := layout(t, "http://localhost", "").Secure("localhost"); ok {
		t.Error("plain http has a secure origin")
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	if got := origin.Host(layout(t, "http://localhost:8080", "").URL(workspace.Host{ID: id, Port: 80})); got != "80--"+string(id)+".localhost:8080" {
		t.Error(got)
	}
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost.": true, "a.localhost": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true,
		"": false, "localhost.evil.example": false, "xlocalhost": false, "192.0.2.1": false, "0.0.0.0": false, "::": false,
	} {
		if got := origin.Loopback(host); got != want {
			t.Errorf("Loopback(%q) = %v", host, got)
		}
	}
}

func TestParsePort(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int{"1": 1, "80": 80, "65535": 65535} {
		if got, ok := origin.ParsePort(s); !ok || got != want {
			t.Errorf("ParsePort(%q) = %d, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "0", "00", "080", "65536", "99999", "100000", "-1", "+1", " 1", "1 ", "1e3", "٣", "0x1"} {
		if got, ok := origin.ParsePort(s); ok {
			t.Errorf("ParsePort(%q) = %d", s, got)
		}
	}
}

func TestSources(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{
		"https://*.example.com": "https://*.example.com", "https://*-ws.example.com:8443": "https://*.example.com:8443", "path": "",
	} {
		if got := layout(t, "https://code.example.com", setting).Sources(); got != want {
			t.Errorf("%s: %q, want %q", setting, got, want)
		}
	}
}

// FuzzRoute checks that a host which names a workspace names it in one form only, apart
// from case, a trailing dot and the default port.
func FuzzRoute(f *testing.F) {
	for _, host := range []string{"localhost:8080", string(id) + ".localhost:8080", "3000--" + string(id) + ".localhost:8080", "[::1]:8080", "evil.example", string(id) + "-ws.example.com.", "a\x00b"} {
		f.Add(host)
	}
	layouts := []origin.Layout{
		layout(f, "http://localhost:8080", ""), layout(f, "https://code.example.com", "https://*-ws.example.com"),
		layout(f, "https://example.com", "https://*.example.com:8443"), layout(f, "https://code.example.com", "path"),
	}
	f.Fuzz(func(t *testing.T, host string) {
		for _, l := range layouts {
			p := l.Route(host)
			if p.Kind != origin.Workspace {
				if p.ID != "" || p.Port != 0 {
					t.Fatalf("Route(%q) = %+v", host, p)
				}
				continue
			}
			if l.PathMode() || !workspace.ValidID(string(p.ID)) || p.Port < 0 || p.Port > 65535 {
				t.Fatalf("Route(%q) = %+v", host, p)
			}
			own := origin.Host(l.URL(p.Host))
			if l.Route(own) != p {
				t.Fatalf("Route(%q) = %+v, and its own host %q is %+v", host, p, own, l.Route(own))
			}
			plain := strings.TrimSuffix(strings.ToLower(host), ":443")
			name, port, _ := strings.Cut(plain, ":")
			if name = strings.TrimSuffix(name, "."); port != "" {
				name += ":" + port
			}
			if name != own {
				t.Fatalf("Route(%q) = %+v, whose host is %q", host, p, own)
			}
		}
	})
}

// FuzzParse checks that every accepted pattern routes the hosts that it gives.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"https://*.example.com", "https://*-ws.example.com:8443", "path", "", "https://[*]", "https://*.localhost", "https://xn--*.example.com"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, setting string) {
		l, err := origin.Parse(&url.URL{Scheme: "https", Host: "code.example.com"}, setting)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("%q: the error has a control character: %q", setting, err)
			}
			return
		}
		if l.Route("code.example.com").Kind != origin.Main {
			t.Fatalf("%q: the main host is %+v", setting, l.Route("code.example.com"))
		}
		if l.PathMode() {
			return
		}
		for _, p := range []origin.Place{{Kind: origin.Workspace, Host: workspace.Host{ID: id}}, {Kind: origin.Workspace, Host: workspace.Host{ID: id, Port: 65535}}} {
			if got := l.Route(origin.Host(l.URL(p.Host))); got != p {
				t.Fatalf("%q: %s is %+v", setting, l.URL(p.Host), got)
			}
			if u, err := url.Parse(l.URL(p.Host)); err != nil || u.Host != origin.Host(l.URL(p.Host)) || u.Path != "" {
				t.Fatalf("%q: %s is no origin: %v", setting, l.URL(p.Host), err)
			}
		}
	})
}

func TestPortURI(t *testing.T) {
	t.Parallel()
	const id = "0198c0de-0000-7000-8000-00000000000a"
	for _, test := range []struct{ main, setting, want string }{
		{"http://localhost:8080", "", "http://{{port}}--" + id + ".localhost:8080/"},
		{"https://code.example.com", "https://*-ws.example.com", "https://{{port}}--" + id + "-ws.example.com/"},
		{"https://code.example.com", origin.PathMode, ""},
	} {
		u, err := url.Parse(test.main)
		if err != nil {
			t.Fatal(err)
		}
		l, err := origin.Parse(u, test.setting)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.PortURI(id); got != test.want {
			t.Errorf("%s %s: %q, want %q", test.main, test.setting, got, test.want)
		}
		if test.want != "" && l.URL(workspace.Host{ID: id, Port: 3000})+"/" != strings.Replace(test.want, "{{port}}", "3000", 1) {
			t.Errorf("%s %s: it does not lead to the port", test.main, test.setting)
		}
	}
}
