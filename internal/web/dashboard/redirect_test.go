package dashboard

import "testing"

func TestLocalPath(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"/", "/workspaces/x", "/w/0198c0de-0000-7000-8000-000000000001/?folder=/home/coder", "/settings/tokens", "/a%20b", "/?q=%ED%95%9C"} {
		if got := localPath(ok); got != ok {
			t.Errorf("localPath(%q) = %q", ok, got)
		}
	}
	for _, bad := range []string{
		"", "x", "workspaces", "//evil", "//evil/x", "///evil", "/\\evil", "\\\\evil", "/%5cevil", "/%5C%5Cevil", "/%09/evil", "/\t/evil", "/%0a/evil", "/%0d%0aX: y",
		"/%2fevil", "/%2F%2Fevil", "https://evil", "https:/evil", "https:evil", "HTTPS://host//evil", "javascript:alert(1)", "data:text/html,x",
		"/x\nSet-Cookie: a", "/\x00", " /x", "http://localhost:8080/", "/login", "/login?next=/", "/setup", "/%zz", "?x", "#x", "/\u0085/evil"[:1] + "/evil",
	} {
		if got := localPath(bad); got != "/" {
			t.Errorf("localPath(%q) = %q, want /", bad, got)
		}
	}
}

func FuzzLocalPath(f *testing.F) {
	for _, s := range []string{"/", "//evil", "/\\evil", "/%09/evil", "https://evil", "/w/x/?a=b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := localPath(s)
		if got != "/" && got != s {
			t.Fatalf("localPath(%q) = %q: neither refused nor unchanged", s, got)
		}
		if len(got) > 1 && (got[0] != '/' || got[1] == '/' || got[1] == '\\' || got[1] < 0x20) {
			t.Fatalf("localPath(%q) = %q", s, got)
		}
	})
}
