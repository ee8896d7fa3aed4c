package api

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// ArchiveSuffix is the suffix of the file of an archive.
const ArchiveSuffix = ".tar.zst"

// maxFileName leaves room, in the 255 bytes that file systems allow, for the
// suffixes that browsers add during a download.
const maxFileName = 200

// ArchiveFileName returns the name of the file to which the archive of a workspace
// is downloaded. It is a valid name on every system.
func ArchiveFileName(workspaceName string) string {
	name := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == utf8.RuneError || strings.ContainsRune(`/\:*?"<>|`, r) {
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
	return name + ArchiveSuffix
}
