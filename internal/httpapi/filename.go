package httpapi

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	archiveSuffix = ".tar.zst"
	// maxFileName leaves room, in the 255 bytes that file systems allow, for
	// what programs add while they download.
	maxFileName = 200
)

// ArchiveFileName is the name of a file for the archive of a workspace of that
// name: one that is a plain name on any system.
func ArchiveFileName(workspaceName string) string {
	name := strings.Map(func(r rune) rune {
		if unprintable(r) || r == utf8.RuneError || strings.ContainsRune(`/\:*?"<>|`, r) {
			return '_'
		}
		return r
	}, workspaceName)
	for len(name) > maxFileName {
		_, n := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-n]
	}
	name = strings.Trim(name, ". ")
	if name == "" {
		name = "workspace"
	}
	return name + archiveSuffix
}

// attachment is a Content-Disposition that has a browser keep the answer under
// a name, in the form that every browser knows and in the one that carries any
// character (RFC 6266).
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
	if strings.Trim(strings.TrimSuffix(plain, archiveSuffix), "_ .-") == "" {
		plain = "workspace" + archiveSuffix
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

// attrChar reports whether c stands for itself in an extended parameter (RFC 8187).
func attrChar(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$&+-.^_`|~", c) >= 0
}
