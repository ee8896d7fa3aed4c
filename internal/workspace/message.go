package workspace

import "strings"

// MaxMessage is how many bytes a message of a failure has at most. What Docker,
// a registry or a job says may be of any size; the row, the API and the log get
// no more than this.
const MaxMessage = 4 << 10

const cutMark = "… (cut)"

// Cut returns the message as valid UTF-8 of at most MaxMessage bytes; one that
// was longer ends with a mark.
func Cut(message string) string {
	if len(message) > MaxMessage {
		// A replaced byte takes three: what is valid is cut once, here.
		head := strings.ToValidUTF8(message[:MaxMessage-len(cutMark)], "")
		return head + cutMark
	}
	if s := strings.ToValidUTF8(message, "\uFFFD"); len(s) <= MaxMessage {
		return s
	}
	return Cut(strings.ToValidUTF8(message, "\uFFFD"))
}
