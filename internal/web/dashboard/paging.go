package dashboard

import (
	"net/http"
	"net/url"
)

// paging leads to other pages of a list.
type paging struct {
	Next  string // address of the next page; empty on the last
	First string // address of the first page; empty on the first
}

// pagingOf returns the paging of a page at path whose cursor is in the parameter name.
func pagingOf(path, name, cursor, next string) (p paging) {
	if next != "" {
		p.Next = path + "?" + url.Values{name: {next}}.Encode()
	}
	if cursor != "" {
		p.First = path
	}
	return p
}

// pageParam returns a parameter of the page that the browser shows: the requested one, or the
// one that a script on it sent the request from.
func pageParam(r *http.Request, name string) string {
	if r.Method == http.MethodGet {
		return r.URL.Query().Get(name)
	}
	u, err := url.Parse(r.Header.Get("HX-Current-URL"))
	if err != nil {
		return ""
	}
	return u.Query().Get(name)
}
