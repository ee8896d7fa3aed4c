package vscode

import (
	"encoding/binary"
	"testing"
)

// Only what the terminal itself sends is not typing.
func TestTerminalAnswersAreNotTyping(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]sign{
		"\x1b[?1;2c":                       noSign, // device attributes
		"\x1b[>0;276;0c":                   noSign,
		"\x1b[24;80R":                      noSign, // position of the cursor
		"\x1b[2;1R":                        noSign,
		"\x1b[0n":                          noSign, // status
		"\x1b[I":                           noSign, // focus
		"\x1b[O":                           noSign,
		"\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\": noSign, // background colour
		"\x1b]11;rgb:1e1e/1e1e/1e1e\x07":   noSign,
		"\x1bP1+r524742=38\x1b\\":          noSign,
		"\x1b[?1;2c\x1b[24;80R":            noSign,
		"\x1b[?2026;2$y":                   noSign,
		"l":                                typed,
		"\r":                               typed,
		"\x03":                             typed,
		"\x1b":                             typed,
		"\x1b[A":                           typed, // up
		"\x1bOP":                           typed, // F1
		"\x1b[1;2R":                        typed, // Shift+F3
		"\x1b[3~":                          typed, // Delete
		"\x1b[?1;2cls\r":                   typed,
		"\x1b[200~pasted\x1b[201~":         typed,
		"":                                 typed, // not understood
	} {
		args := "\x04\x02\x06\x01\x01" + string(binary.AppendUvarint(nil, uint64(len(input)))) + input
		body := "\x04\x04\x06\x64\x06\x05\x01\x0eremoteterminal\x01\x06$input" + args
		if got := signOfManagement(message{kind: kindRegular, body: []byte(body)}); got != want {
			t.Errorf("%q: sign %d, want %d", input, got, want)
		}
	}
	if got := signOfManagement(message{kind: kindRegular, body: []byte("\x04\x04\x06\x64\x06\x05\x01\x0eremoteterminal\x01\x06$input\x04\x00")}); got != typed {
		t.Errorf("arguments of another form: %d", got)
	}
}
