package origin_test

import (
	"net/url"
	"testing"

	"codehub/internal/gateway/origin"
)

func TestLocalPath(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"/", "/x", "/a%20b", "/?folder=/home/coder", "/?x=https://example.com//", "/?q=%0a%5c", "/login", "/a//b", "/a%2fb"} {
		if !origin.LocalPath(s) {
			t.Errorf("%q is not local", s)
		}
	}
	for _, s := range []string{
		"", "x", "//evil", "//evil/x", "/\\evil", "\\\\evil", "/%5cevil", "/%09/evil", "/\t/evil", "/%0a/evil", "/%2fevil", "/%2F%2Fevil",
		"https://evil", "https:/evil", "https:evil", "javascript:alert(1)", "/x\nSet-Cookie: a", "/\x00", " /x", "/%zz", "?x", "#x",
	} {
		if origin.LocalPath(s) {
			t.Errorf("%q is local", s)
		}
	}
}

func FuzzLocalPath(f *testing.F) {
	for _, s := range []string{"/", "//evil", "/\\evil", "/%09/evil", "https://evil", "/w/x/?a=b"} {
		f.Add(s)
	}
	base := &url.URL{Scheme: "https", Host: "code.example.com"}
	f.Fuzz(func(t *testing.T, s string) {
		if !origin.LocalPath(s) {
			return
		}
		u, err := base.Parse(s)
		if err != nil || u.Host != base.Host || u.Scheme != base.Scheme {
			t.Fatalf("%q leads to %v, %v", s, u, err)
		}
	})
}
