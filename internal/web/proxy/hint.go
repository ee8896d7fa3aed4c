package proxy

import (
	"maps"
	"net/http"
)

// forwardHints returns a function that passes on an informational response.
func (x *exchange) forwardHints(w *visitorWriter) func(code int, h http.Header) error {
	return func(code int, h http.Header) error {
		if err := x.confineHint(h); err != nil {
			return err
		}
		all := w.Header()
		own := maps.Clone(all)
		maps.Copy(all, h)
		w.connection.beginWrite()
		w.WriteHeader(code)
		w.connection.endWrite()
		clear(all)
		maps.Copy(all, own)
		return nil
	}
}
