package postgres

import (
	"bytes"
	"strings"
)

// nullable maps "" to NULL.
func nullable[T ~string](s T) *string {
	if s == "" {
		return nil
	}
	v := string(s)
	return &v
}

// clean makes text from outside storable: PostgreSQL accepts neither NUL nor invalid
// UTF-8.
func clean(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}

// storableJSON removes from encoded JSON the escape of NUL, which jsonb refuses.
func storableJSON(b []byte) []byte {
	if !bytes.Contains(b, []byte(`\u0000`)) {
		return b
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+1 < len(b) {
			if bytes.HasPrefix(b[i:], []byte(`\u0000`)) {
				i += len(`\u0000`) - 1
				continue
			}
			out = append(out, b[i], b[i+1]) // an escape is copied whole: \\u0000 is text
			i++
			continue
		}
		out = append(out, b[i])
	}
	return out
}
