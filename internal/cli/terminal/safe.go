package terminal

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Foreign returns a writer to out for text that others wrote: on a terminal it removes everything
// that could control it, except line ends and tabs. Files and pipes get the text as it is.
func Foreign(out io.Writer) io.Writer {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &safe{out: out}
	}
	return out
}

// safe removes control characters from a stream. Short sequences that begin with ESC [, such as
// those of colors, are removed whole. Of longer ones, which could hide text until their end,
// only the control characters are.
type safe struct {
	out  io.Writer
	rest []byte // the beginning of a character or a sequence
}

// maxSequence is the length in bytes of the sequences that are removed whole.
const maxSequence = 32

var (
	sequence  = regexp.MustCompile(`^(?:\x1b\[|\x{9b})[0-?]*[ -/]*[@-~]`)
	beginning = regexp.MustCompile(`^(?:\x1b\[|\x{9b})[0-?]*[ -/]*$`)
)

// Write implements io.Writer. It keeps an incomplete sequence until the next call.
func (s *safe) Write(p []byte) (int, error) {
	in := append(s.rest, p...)
	out := make([]byte, 0, len(in))
	for len(in) > 0 && !incomplete(in) {
		if n := len(sequence.Find(in[:min(len(in), maxSequence)])); n > 0 {
			in = in[n:]
			continue
		}
		r, n := utf8.DecodeRune(in)
		if in = in[n:]; r == '\n' || r == '\t' || !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) {
			out = utf8.AppendRune(out, r) // a byte that is no character becomes U+FFFD
		}
	}
	s.rest = bytes.Clone(in)
	_, err := s.out.Write(out)
	return len(p), err
}

// incomplete reports whether all of b is the beginning of a character or a short sequence.
func incomplete(b []byte) bool {
	return !utf8.FullRune(b) || len(b) < maxSequence && (len(b) == 1 && b[0] == '\x1b' || beginning.Match(b))
}
