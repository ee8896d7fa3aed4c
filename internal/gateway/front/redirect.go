package front

import (
	"net/http"
	"time"
)

// redirectTimeout bounds a request to the plain listener and its response.
const redirectTimeout = 10 * time.Second

// redirectServer is the server of the plain http listener. It redirects GET and HEAD to the
// origin that secure returns for the request's host, and refuses other methods: a
// redirected POST has already sent its body unencrypted.
func redirectServer(secure func(host string) (origin string, ok bool)) *http.Server {
	return &http.Server{
		ReadTimeout: redirectTimeout, WriteTimeout: redirectTimeout, IdleTimeout: redirectTimeout, MaxHeaderBytes: 16 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			origin, ok := secure(r.Host)
			switch {
			case !ok:
				http.Error(w, "This server does not know the host.", http.StatusMisdirectedRequest)
			case r.Method != http.MethodGet && r.Method != http.MethodHead:
				http.Error(w, "Use https: "+origin, http.StatusForbidden)
			default:
				w.Header().Set("Connection", "close")
				http.Redirect(w, r, origin+r.URL.RequestURI(), http.StatusPermanentRedirect)
			}
		}),
	}
}
