package dashboard

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"net/http"

	"codehub/internal/dashboard/catalogue"
	"codehub/internal/proxy"
)

// noticeView is a page on the host of a workspace or an unknown one. It loads nothing: on a
// workspace's host, assets would be the workspace's.
type noticeView struct {
	Lang        *catalogue.Language
	Status      int
	Title, Text string
	Again, Home string
	Style       template.CSS
}

// noticeStyle returns the style sheet of notices and the policy that allows it alone.
func noticeStyle() (style template.CSS, policy string) {
	b, err := files.ReadFile("static/notice.css")
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(b)
	return template.CSS(b), "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Notice is the page for a host that does not serve codehub's assets.
func (d *Dashboard) Notice(w http.ResponseWriter, r *http.Request, status int, p proxy.NoticePage) {
	set := d.pages[catalogue.Match("", r).Code]
	key := "notice." + string(p.Notice)
	if !set.lang.Has(key + ".title") {
		key = "message." + string(p.Notice)
	}
	style, policy := noticeStyle()
	title, text := set.lang.T(key+".title"), set.lang.T(key+".body")
	if p.Notice == proxy.NoticePort || p.Notice == proxy.NoticeAppPort {
		title, text = set.lang.T(key+".title", p.Port), set.lang.T(key+".body", p.Port)
	}
	v := noticeView{
		Lang: set.lang, Status: status, Title: title, Text: text,
		Again: p.Again, Home: p.Home, Style: style,
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
