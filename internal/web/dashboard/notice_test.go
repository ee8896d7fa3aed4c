package dashboard

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"codehub/internal/web/proxy"
)

// Notices are shown on hosts that serve none of codehub's assets, so they load nothing
// and their policy allows only their own style sheet.
func TestNotices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	title := map[string]bool{}
	for _, n := range []proxy.Notice{
		proxy.NoticeForbidden, proxy.NoticeNotFound, proxy.NoticeNoPage, proxy.NoticeUnavailable, proxy.NoticeBusy,
		proxy.NoticeCookies, proxy.NoticeExpired, proxy.NoticeMisdirected, proxy.NoticePort, proxy.NoticeAppPort,
		proxy.NoticeCookieConflict,
	} {
		for _, lang := range []string{"en", "ko"} {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "http://x.localhost/?<script>", nil)
			r.Header.Set("Accept-Language", lang)
			rec := httptest.NewRecorder()
			w.dash.Notice(rec, r, http.StatusForbidden, proxy.NoticePage{Notice: n, Port: 3000, Again: "http://x.localhost/?a=%22%3E", Home: "http://localhost/"})
			body := rec.Body.String()
			style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(body)
			if style == nil {
				t.Fatalf("%s: no style sheet in %s", n, body)
			}
			sum := sha256.Sum256([]byte(style[1]))
			csp := rec.Header().Get("Content-Security-Policy")
			if !strings.Contains(csp, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") || !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") {
				t.Errorf("%s: the policy is %q", n, csp)
			}
			if strings.Contains(body, "<script") || strings.Contains(body, "src=") || strings.Contains(body, "<link") {
				t.Errorf("%s: the page loads something: %s", n, body)
			}
			contains(t, string(n), body, `<html lang="`+lang+`">`, `href="http://localhost/"`, `href="http://x.localhost/?a=%22%3E"`)
			h := regexp.MustCompile(`<h1>(.+)</h1>`).FindStringSubmatch(body)
			if h == nil || title[h[1]] {
				t.Errorf("%s in %s has no title of its own: %v", n, lang, h)
			} else {
				title[h[1]] = true
			}
		}
	}
}
