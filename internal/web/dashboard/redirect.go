package dashboard

import (
	"net/url"
	"strings"

	"codehub/internal/gateway/origin"
)

// localPath returns next if every browser reads it as a path on this origin and it is not the
// login or setup page, else "/".
func localPath(next string) string {
	const home = "/"
	if len(next) > 2048 || !origin.LocalPath(next) {
		return home
	}
	u, err := url.Parse(next)
	if err != nil {
		return home
	}
	if strings.HasPrefix(u.Path, "/login") || strings.HasPrefix(u.Path, "/setup") || strings.HasPrefix(u.Path, "/passkey") {
		return home
	}
	return next
}
