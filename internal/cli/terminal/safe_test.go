package terminal

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
)

// Text that others wrote does not control a terminal, however it is cut into writes.
func TestForeignTextDoesNotControlTerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\ttext, 한국어 ✓\nnext\n":               "plain\ttext, 한국어 ✓\nnext\n",
		"\x1b[31mred\x1b[0m \x1b[1;38:5:9mbold\n":  "red bold\n",
		"\x1b[2J\x1b[10;20Hmoved\n":                "moved\n",
		"copy \x1b]52;c;cm0gLXJm\x07 this\n":       "copy ]52;c;cm0gLXJm this\n", // OSC 52 sets the clipboard
		"\x1b]0;never ended\nvisible\n":            "]0;never ended\nvisible\n",
		"\x1bPq\x1b\\\x1bc\n":                      "Pq\\c\n",
		"c1 \u009b2J\u009d52;c;eA==\u009c\u0085\n": "c1 52;c;eA==\n",
		"raw c1 \x9b2J\x9d\n":                      "raw c1 \ufffd2J\ufffd\n",
		"over\rwritten\b\b\x00\x7f\n":              "overwritten\n",
		"\u202eright to left\n":                    "right to left\n",
		"\x1b[" + strings.Repeat("1;", 50) + "m\n": "[" + strings.Repeat("1;", 50) + "m\n",
	} {
		for _, size := range []int{1, 2, 3, len(in)} {
			var out bytes.Buffer
			w := &safe{out: &out}
			for rest := in; rest != ""; {
				n := min(size, len(rest))
				if written, err := w.Write([]byte(rest[:n])); written != n || err != nil {
					t.Fatal(written, err)
				}
				rest = rest[n:]
			}
			if out.String() != want {
				t.Errorf("%q in pieces of %d: %q, want %q", in, size, out.String(), want)
			}
			if strings.ContainsFunc(out.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
				t.Errorf("%q: control characters in %q", in, out.String())
			}
		}
	}
	var out bytes.Buffer
	if Foreign(&out) != &out {
		t.Error("text for a file is changed")
	}
}
