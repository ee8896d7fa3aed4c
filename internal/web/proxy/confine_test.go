package proxy

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var inA = confinement{prefix: under(wsA), reserved: ours, hosts: []string{"172.18.0.5:8080", "localhost:8080"}}

func TestConfineCookies(t *testing.T) {
	t.Parallel()
	p := under(wsA)
	tests := []struct{ name, in, want string }{
		{"plain", "a=1", "a=1"},
		{"untouched", `a="x y"; Expires=Wed, 21 Oct 2037 07:28:00 GMT; max-age=5;HttpOnly ; SameSite=None; Secure; Partitioned`, `a="x y"; Expires=Wed, 21 Oct 2037 07:28:00 GMT; max-age=5;HttpOnly ; SameSite=None; Secure; Partitioned`},
		{"root path", "a=1; Path=/; HttpOnly", "a=1; Path=" + p + "/; HttpOnly"},
		{"a path", "a=1; path = /app", "a=1; path =" + p + "/app"},
		{"its own path", "a=1; Path=" + p + "/x", "a=1; Path=" + p + "/x"},
		{"its own folder", "a=1; Path=" + p, "a=1; Path=" + p},
		{"a path like its own", "a=1; Path=" + p + "x/", "a=1; Path=" + p + p + "x/"},
		{"another's path", "a=1; Path=" + under(wsB) + "/", "a=1; Path=" + p + under(wsB) + "/"},
		{"the last path counts", "a=1; Path=" + p + "/; PATH=/", "a=1; Path=" + p + "/; PATH=" + p + "/"},
		{"no path", "a=1; Path=; Secure", "a=1; Secure"},
		{"a path in quotes", `a=1; Path="/"`, "a=1"},
		{"wider domain", "a=1; Domain=example.com; Secure", "a=1; Secure"},
		{"domain", "a=1;domain =.localhost", "a=1"},
		{"two domains", "a=1; Domain=; DOMAIN=localhost", "a=1"},
		{"the session", "codehub_session=x; Path=/", ""},
		{"the secure session", "__Host-codehub_session=x; Path=/; Secure", ""},
		{"the secret", "code-server-session=x", ""},
		{"the session's end", "codehub_session=; Max-Age=0", ""},
		{"spaces", " \tcodehub_session\t =x", ""},
		{"no value", "codehub_session", ""},
		{"no name", "=codehub_session=x", ""},
		{"still no name", " = =codehub_session", ""},
		{"control characters", "a=1\x01; Path=/", ""},
		{"cut short", "codehub_session\x00a=1", ""},
		{"a name similar to a reserved one", "codehub_session2=1", "codehub_session2=1"},
		{"a reserved name as a value", "a=codehub_session=1", "a=codehub_session=1"},
		{"empty", "", ""},
	}
	for _, test := range tests {
		h := http.Header{"Set-Cookie": {test.in}}
		confine(h, inA)
		if got := h.Get("Set-Cookie"); got != test.want {
			t.Errorf("%s: %q became %q, want %q", test.name, test.in, got, test.want)
		}
		if test.want == "" && test.in != "" && len(h["Set-Cookie"]) != 0 {
			t.Errorf("%s: an empty header is left", test.name)
		}
	}
}

func FuzzConfineCookie(f *testing.F) {
	f.Add("a=1; Path=/; Domain=example.com")
	f.Add("=codehub_session=x; path=\"/\"")
	f.Add(" code-server-session\t; Path=/w/x;Path= /y ; domain")
	f.Fuzz(func(t *testing.T, line string) {
		got, ok := inA.cookie(line)
		if !ok {
			return
		}
		pair, attributes, _ := strings.Cut(got, ";")
		if before, _, _ := strings.Cut(line, ";"); pair != before {
			t.Fatalf("%q became %q", line, got)
		}
		if name := storedName(pair); slices.Contains(ours, name) {
			t.Fatalf("%q is set by %q", name, got)
		}
		for attribute := range strings.SplitSeq(attributes, ";") {
			key, value, _ := strings.Cut(attribute, "=")
			switch strings.ToLower(strings.TrimSpace(key)) {
			case "domain":
				t.Fatalf("%q keeps a domain", got)
			case "path":
				if value = strings.TrimSpace(value); value != inA.prefix && !strings.HasPrefix(value, inA.prefix+"/") {
					t.Fatalf("%q reaches %q", got, value)
				}
			}
		}
		// As Go's client parses it.
		if c, err := http.ParseSetCookie(got); err == nil {
			if slices.Contains(ours, c.Name) || c.Domain != "" || c.Path != "" && !strings.HasPrefix(c.Path, inA.prefix) {
				t.Fatalf("%q is read as %+v", got, c)
			}
		}
	})
}

func TestConfineHeaders(t *testing.T) {
	t.Parallel()
	p := under(wsA)
	tests := []struct{ name, header, in, want string }{
		{"relative", "Location", "./login?to=%2F", "./login?to=%2F"},
		{"query alone", "Location", "?folder=/home", "?folder=/home"},
		{"absolute path", "Location", "/proxy/3000/a%2Fb?x=/y#z", p + "/proxy/3000/a%2Fb?x=/y#z"},
		{"root", "Location", "/", p + "/"},
		{"under the prefix", "Location", p + "/x", p + "/x"},
		{"the folder itself", "Location", p, p},
		{"the container", "Location", "http://172.18.0.5:8080/x?y", p + "/x?y"},
		{"the container, no path", "Location", "http://172.18.0.5:8080", p + "/"},
		{"the container, query alone", "Location", "http://172.18.0.5:8080?x", p + "/?x"},
		{"the requested host", "Location", "https://LOCALHOST:8080/x", p + "/x"},
		{"the requested host, no scheme", "Location", "//localhost:8080/x", p + "/x"},
		{"elsewhere", "Location", "https://example.com/x", "https://example.com/x"},
		{"another host, no scheme", "Location", "//example.com/x", "//example.com/x"},
		{"another port", "Location", "http://localhost:3000/", "http://localhost:3000/"},
		{"another scheme", "Location", "vscode://localhost:8080/x", "vscode://localhost:8080/x"},
		{"not an address", "Location", "http://[", "http://["},
		{"an invalid path", "Location", "/%zz", p + "/%zz"},
		{"worker with a wide scope", "Service-Worker-Allowed", "/", p + "/"},
		{"worker with its own scope", "Service-Worker-Allowed", p + "/x", p + "/"},
		{"worker with an invalid scope", "Service-Worker-Allowed", "x", p + "/"},
		{"worker with ..", "Service-Worker-Allowed", p + "/../../", p + "/"},
		{"worker with .., escaped", "Service-Worker-Allowed", "/%2e%2e/%2E./", p + "/"},
		{"worker with .., backslashes", "Service-Worker-Allowed", p + `/\..\..\..`, p + "/"},
		{"clearing", "Clear-Site-Data", `"cookies"`, ""},
		{"https forever", "Strict-Transport-Security", "max-age=63072000; includeSubDomains", ""},
		{"https no longer", "Strict-Transport-Security", "max-age=0", ""},
		{"another server", "Alt-Svc", `h2="evil.example:443"; ma=2592000; persist=1`, ""},
		{"reports of every address", "NEL", `{"report_to":"x","max_age":31536000,"success_fraction":1}`, ""},
		{"report endpoints", "Report-To", `{"group":"x","max_age":31536000,"endpoints":[{"url":"https://evil.example"}]}`, ""},
		{"hints", "Accept-CH", "Sec-CH-UA-Model", ""},
		{"logged out", "Set-Login", "logged-out", ""},
		{"anything else", "Content-Security-Policy", "default-src *", "default-src *"},
	}
	for _, test := range tests {
		h := http.Header{test.header: {test.in}}
		confine(h, inA)
		if diff := cmp.Diff(test.want, h.Get(test.header)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}
