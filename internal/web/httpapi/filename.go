package httpapi

import (
	"fmt"
	"strings"

	"codehub/api"
)

// attachment returns a Content-Disposition with which a browser saves the response under
// a name, in the form that every browser knows and in the one that carries any character
// (RFC 6266).
func attachment(file string) string {
	plain := strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e || strings.ContainsRune(`"\%`, r) {
			return '_'
		}
		return r
	}, file)
	if plain == file {
		return `attachment; filename="` + plain + `"`
	}
	if strings.Trim(strings.TrimSuffix(plain, api.ArchiveSuffix), "_ .-") == "" {
		plain = "workspace" + api.ArchiveSuffix
	}
	var b strings.Builder
	for i := range len(file) {
		if c := file[i]; attrChar(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return `attachment; filename="` + plain + `"; filename*=UTF-8''` + b.String()
}

// attrChar reports whether c is not escaped in an extended parameter (RFC 8187).
func attrChar(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$&+-.^_`|~", c) >= 0
}
