package server

import (
	"log/slog"
	"net/http"
	"strings"

	"codehub/internal/gateway/origin"
	"codehub/internal/web/dashboard"
	"codehub/internal/web/httpapi"
	"codehub/internal/web/proxy"
)

// refuseConflict responds to a request with several session cookies: with a page to a
// browser that shows one or runs the dashboard's scripts, else with JSON. Hosts other than
// codehub's own do not serve its assets, so the page there is a notice.
func refuseConflict(pages *dashboard.Dashboard, layout origin.Layout, log *slog.Logger) func(w http.ResponseWriter, r *http.Request, err error) {
	return func(w http.ResponseWriter, r *http.Request, err error) {
		page := strings.Contains(r.Header.Get("Accept"), "text/html")
		place := layout.Route(r.Host)
		if page && place.Kind != origin.Main {
			w.Header().Set("Cache-Control", "no-store")
			notice := proxy.NoticePage{Notice: proxy.NoticeCookieConflict, Home: layout.Main() + "/"}
			if path := r.URL.RequestURI(); place.Kind == origin.Workspace && r.Method == http.MethodGet && origin.LocalPath(path) {
				notice.Again = layout.URL(place.Host) + path
			}
			pages.Notice(w, r, http.StatusBadRequest, notice)
			return
		}
		if (page || r.Header.Get("HX-Request") != "") && place.Kind == origin.Main && !strings.HasPrefix(r.URL.Path, httpapi.Prefix+"/") {
			pages.CookieConflict(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		httpapi.WriteError(w, r, log, err)
	}
}
