package main

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestBytes(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(newHandler("", t.TempDir(), nil))
	t.Cleanup(srv.Close)
	const n = 3*bytesBuffer/2 + 1
	for _, c := range []struct {
		method, query, body string
		status              int
		length              int // of the answer, if it is not 0
		want                string
	}{
		{"GET", "?n=393217", "", 200, n, ""},
		{"GET", "", "", 200, 0, ""},
		{"GET", "?n=-1", "", 400, 0, "a number of bytes"},
		{"PUT", "", strings.Repeat("x", n), 200, 0, `"bytes":393217`},
	} {
		res, text := request(t, c.method, srv.URL+"/bytes"+c.query, c.body)
		if res.StatusCode != c.status || c.length > 0 && len(text) != c.length || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d with %d bytes, want %d with %d and %q", c.method, c.query, res.StatusCode, len(text), c.status, c.length, c.want)
		}
	}
}
