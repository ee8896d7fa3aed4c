package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
)

// A page on codehub's host sets session cookies of another user with longer paths,
// which Chromium sends first. Neither the API nor a page acts as that user, and the
// next request is accepted, since the cookies are removed.
func TestPlantedCookies(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DELETE_GRACE=0s")
	if _, err := s.api.CreateAccount(t.Context(), api.CreateAccount{Username: "eve", Password: proc.AdminPassword}); err != nil {
		t.Fatal(err)
	}
	hers := s.loginCookie("eve")
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)

	plant := func(cookie string, paths ...string) chromedp.Action[chromedp.Void] {
		var script strings.Builder
		for _, path := range paths {
			fmt.Fprintf(&script, "document.cookie = '%s; path=%s'; ", cookie, path)
		}
		return until("(() => { " + script.String() + "return true })()")
	}
	// session waits until the API has said who the browser is: the user's name, or
	// the code of the error.
	session := func(want string) chromedp.Action[chromedp.Void] {
		return until(`(() => {
			if (window.asked) return window.answer === '` + want + `' || window.answer && (() => { throw window.answer })()
			window.asked = true
			fetch('/api/v1/session').then(r => r.json()).then(j => { window.answer = j.error || j.user.username })
		})()`)
	}
	forget := until(`(() => { window.asked = false; window.answer = undefined; return true })()`)

	b.do("be admin", session("admin"), forget)
	b.do("plant four cookies of another user", plant(hers, "/api", "/api/", "/api/v1", "/api/v1/session"))
	b.do("be refused, and then be admin", session("cookie_conflict"), forget, session("admin"), forget)

	b.do("plant a session where a page is, and one that has ended", plant(hers, "/settings"), plant(endedSession, "/settings/tokens"))
	b.do("see the page about cookies", navigate(s.URL+"/settings/tokens"), until(`document.querySelector('.message-status').innerText === '400'`))
	b.screenshot("conflict")
	b.do("try again", chromedp.Click(".message .btn-primary"), chromedp.WaitVisible("#new-token"))
	b.do("see another page at once", navigate(s.URL+"/settings/account"), chromedp.WaitVisible("#change-password"))

	// A cookie at the path of the login page made it redirect for ever.
	b.do("plant a cookie at the login page", plant(hers, "/login", "/workspaces"))
	b.do("see the page about cookies", navigate(s.URL+"/login"), until(`document.querySelector('.message-status').innerText === '400'`))
	b.do("try again", chromedp.Click(".message .btn-primary"), chromedp.WaitVisible("#new-workspace"))

	mine := s.loginCookie("admin")
	for _, route := range []string{"GET /", "GET /api/v1/session", "POST /api/v1/tokens", "GET /w/" + strings.Repeat("0", 8) + "/", "POST /logout", "GET /dashboard/events"} {
		method, path, _ := strings.Cut(route, " ")
		for _, line := range []string{mine + "; " + hers, hers + "; " + mine, strings.Repeat(hers+"; ", 6) + mine} {
			resp, body := s.ask(method, path, "", "Cookie", line)
			if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "cookie_conflict") {
				t.Errorf("%s with two sessions: %d %s", route, resp.StatusCode, body)
			}
		}
	}
}

// endedSession is a session cookie that no login has given out.
const endedSession = session + "=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
