package imagebuild

import (
	"bufio"
	"io"
	"strings"
)

// eachLine calls f for each line of r until its end. A carriage return ends a line, too:
// programs overwrite their progress. The rest of a long line is dropped.
func eachLine(r io.Reader, f func(string)) {
	in := bufio.NewReader(r)
	var line []byte
	flush := func() {
		if text := strings.TrimSpace(strings.ToValidUTF8(string(line), "\uFFFD")); text != "" {
			f(text)
		}
		line = line[:0]
	}
	for {
		c, err := in.ReadByte()
		switch {
		case err != nil:
			flush()
			return
		case c == '\n', c == '\r':
			flush()
		case len(line) < maxLine:
			line = append(line, c)
		}
	}
}
