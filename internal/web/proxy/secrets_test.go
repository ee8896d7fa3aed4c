package proxy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/api"
	"codehub/internal/runtime"
)

var ours = []string{runtime.SecretCookie, sessionCookie, secureCookie}

func TestWithoutCookies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		in, want []string
	}{
		{"none", nil, []string{}},
		{"only other cookies", []string{`a=1; b="two; three"; c`}, []string{`a=1; b="two; three"; c`}},
		{"only reserved cookies", []string{"codehub_session=x"}, []string{}},
		{"first", []string{"codehub_session=x; a=1"}, []string{"a=1"}},
		{"middle", []string{"a=1; codehub_session=x;  b=2"}, []string{"a=1;  b=2"}},
		{"last", []string{"a=1; codehub_session=x"}, []string{"a=1"}},
		{"all of them", []string{"codehub_session=x; __Host-codehub_session=y; code-server-session=z; a=1"}, []string{"a=1"}},
		{"twice", []string{"codehub_session=x; a=1; codehub_session=y"}, []string{"a=1"}},
		{"without spaces", []string{"a=1;codehub_session=x;b=2"}, []string{"a=1;b=2"}},
		{"with more spaces", []string{"a=1;\t codehub_session \t= x ; b=2"}, []string{"a=1; b=2"}},
		{"without a value", []string{"codehub_session; a=1; codehub_session="}, []string{"a=1"}},
		{"a value with a sign", []string{"codehub_session=a=b; a=b=c"}, []string{"a=b=c"}},
		{"in quotes", []string{`a="x; codehub_session=y"; b=1`}, []string{`a="x; b=1`}},
		{"names that contain reserved ones", []string{"xcodehub_session=1; codehub_session2=2; a=codehub_session"}, []string{"xcodehub_session=1; codehub_session2=2; a=codehub_session"}},
		{"another case is not reserved", []string{"Codehub_Session=1"}, []string{"Codehub_Session=1"}},
		{"several headers", []string{"a=1", "codehub_session=x", "b=2; codehub_session=y"}, []string{"a=1", "b=2"}},
		{"malformed ones stay", []string{" ;; a = 1 ;é=%3B; codehub_session=x;"}, []string{" ;; a = 1 ;é=%3B;"}},
	}
	for _, test := range tests {
		in := slices.Clone(test.in)
		if diff := cmp.Diff(test.want, withoutCookies(test.in, ours)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		if !slices.Equal(in, test.in) {
			t.Errorf("%s: the visitor's own headers were changed", test.name)
		}
	}
}

func FuzzWithoutCookies(f *testing.F) {
	f.Add("a=1; codehub_session=x; b=2")
	f.Add("codehub_session=x;a")
	f.Add(" codehub_session =x;; __Host-codehub_session; code-server-session=\"a;b\"")
	f.Add("a=1;\tcode-server-session\t=;b=codehub_session=")
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\r\n\x00") {
			return // no such header reaches a handler
		}
		// The expected rest, computed from the parts.
		var want []string
		for part := range strings.SplitSeq(line, ";") {
			name, _, _ := strings.Cut(part, "=")
			if !slices.Contains(ours, textproto.TrimString(name)) {
				want = append(want, part)
			}
		}
		kept := withoutCookies([]string{line}, ours)
		if len(kept) > 1 {
			t.Fatalf("%q became %q", line, kept)
		}
		got := strings.Join(kept, "")
		parts := strings.Split(got, ";")
		for i, part := range parts {
			if slices.Contains(ours, cookieName(part)) {
				t.Fatalf("%q survives in %q", cookieName(part), got)
			}
			if i < len(want) && part != want[i] && (i > 0 || part != strings.TrimLeft(want[i], " \t")) {
				t.Fatalf("part %q of %q became %q", want[i], line, part)
			}
		}
		if len(want) > 0 && len(parts) != len(want) {
			t.Fatalf("%q became %q", line, got)
		}
		// As Go's server parses it.
		r := http.Request{Header: http.Header{"Cookie": kept}}
		for _, c := range r.Cookies() {
			if slices.Contains(ours, c.Name) {
				t.Fatalf("%s survives in %q", c.Name, got)
			}
		}
		setSecret(r.Header, "5ec4e7")
		if c, err := r.Cookie(runtime.SecretCookie); err != nil || c.Value != "5ec4e7" || len(r.CookiesNamed(runtime.SecretCookie)) != 1 {
			t.Fatalf("the secret is not read from %q", r.Header["Cookie"])
		}
	})
}

func TestStrip(t *testing.T) {
	t.Parallel()
	s := secrets{cookies: ours, isToken: func(s string) bool { return strings.HasPrefix(s, "chub_") }}
	tests := []struct{ name, in, want string }{
		{"token", "Bearer chub_abc", ""},
		{"token, other spelling", "bEARER   chub_abc ", ""},
		{"another bearer token", "Bearer eyJhbGciOi", "Bearer eyJhbGciOi"},
		{"password", "Basic Y2h1Yl86", "Basic Y2h1Yl86"},
		{"token after a tab", "Bearer\tchub_abc", ""},
		{"another scheme", "Token chub_abc", ""},
		{"no scheme", "chub_abc", ""},
		{"only a scheme", "Bearer", "Bearer"},
	}
	for _, test := range tests {
		h := http.Header{"Authorization": {test.in}, api.TokenHeader: {"chub_abc"}, "X-Other": {"1"}}
		s.strip(h)
		want := http.Header{"X-Other": {"1"}}
		if test.want != "" {
			want["Authorization"] = []string{test.want}
		}
		if diff := cmp.Diff(want, h); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}
