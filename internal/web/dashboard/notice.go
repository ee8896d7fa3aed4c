package dashboard

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"net/http"
	"strconv"

	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/web/proxy"
)

// noticeView is a page on the host of a workspace or an unknown one. It loads nothing: on a
// workspace's host, assets would be the workspace's.
type noticeView struct {
	Lang        *catalogue.Language
	Status      int
	Title, Text string
	Again, Home string
	Style       template.CSS
	// Of a page that waits for a port: the address that it asks, the script that does, and
	// the refresh without scripts, nil after the last one.
	Wait    string
	Script  template.JS
	Refresh *refresh
}

// noticeStyle returns the style sheet of notices, the script of those that wait, and the policy
// that allows these alone.
func noticeStyle() (style template.CSS, script template.JS, policy string) {
	read := func(name string) (text, source string) {
		b, err := files.ReadFile("static/" + name)
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(b)
		return string(b), "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	css, allowStyle := read("notice.css")
	js, allowScript := read("notice.js")
	return template.CSS(css), template.JS(js), "default-src 'none'; style-src " + allowStyle + "; script-src " + allowScript +
		"; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// noticeRefresh returns the refresh of a page that waits for a port, the n-th in a row.
func noticeRefresh(wait string, n int) *refresh {
	if wait == "" || n >= maxRefreshes {
		return nil
	}
	return &refresh{After: refreshAfter[min(n, len(refreshAfter)-1)], URL: wait + "&n=" + strconv.Itoa(n+1)}
}

// Notice is the page for a host that does not serve codehub's assets.
func (d *Dashboard) Notice(w http.ResponseWriter, r *http.Request, status int, p proxy.NoticePage) {
	set := d.pages[catalogue.Match("", r).Code]
	key := "notice." + string(p.Notice)
	if !set.lang.Has(key + ".title") {
		key = "message." + string(p.Notice)
	}
	style, script, policy := noticeStyle()
	title, text := set.lang.T(key+".title"), set.lang.T(key+".body")
	if p.Notice == proxy.NoticePort || p.Notice == proxy.NoticeAppPort {
		title, text = set.lang.T(key+".title", p.Port), set.lang.T(key+".body", p.Port)
	}
	v := noticeView{
		Lang: set.lang, Status: status, Title: title, Text: text,
		Again: p.Again, Home: p.Home, Style: style, Wait: p.Wait, Script: script, Refresh: noticeRefresh(p.Wait, p.N),
	}
	var b bytes.Buffer
	if err := set.parts.ExecuteTemplate(&b, "notice", v); err != nil {
		d.broken(w, r, err)
		return
	}
	d.secureHeaders(w.Header())
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept-Language")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // an error means that the browser disconnected
}
