package vscode

import (
	"hash/maphash"
	"slices"
	"strings"
	"unicode"

	"codehub/internal/bus/activity"
)

// A compressed message with one byte of data has three bytes, so shorter ones are
// empty.
const maxEmptyCompressed = 2

// foreign inspects a part of a message from a client with another protocol.
func (c *client) foreign(p []byte) {
	if c.compressed && c.size <= maxEmptyCompressed {
		return
	}
	if c.repeats == nil || c.size > longHeartbeat {
		c.touch(activity.Client)
		return
	}
	c.repeats.add(p)
}

func (c *client) foreignEnd() {
	if c.repeats == nil {
		return
	}
	if c.size > 0 && c.size <= longHeartbeat && c.repeats.isNew() && !(c.compressed && c.size <= maxEmptyCompressed) {
		c.touch(activity.Client)
	}
	c.repeats.reset()
}

// ForwardedPort reports whether a path of an IDE leads to a program that listens in
// its workspace, such as code-server's /proxy/3000/ and /absproxy/3000/.
//
// Opening a page there is use, and so is what it sends over WebSockets, which may
// be a notebook or another terminal. But pages of development servers send
// heartbeats as data and poll with POST, and an open preview must not keep its
// workspace running forever. So WebSocket messages count only if they differ from
// the most recent ones, and of requests only navigations count. The loss is small:
// a heartbeat with a counter still counts, and submitting forms only by script does
// not.
func ForwardedPort(path string) bool {
	_, ok := PortOf(path)
	return ok
}

// PortOf returns the port to which the IDE forwards requests for a path, with every
// spelling that the IDE accepts: it matches the first name in any case, and reads the port
// by JavaScript's parseInt, which skips white space and a sign, and stops at the first
// character that is no digit. A port that is too large is larger than 65535.
func PortOf(path string) (port int, ok bool) {
	name, rest, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || !strings.HasPrefix(path, "/") || !strings.EqualFold(name, "proxy") && !strings.EqualFold(name, "absproxy") {
		return 0, false
	}
	rest = strings.TrimLeftFunc(rest, func(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' })
	if rest != "" && (rest[0] == '+' || rest[0] == '-') {
		rest = rest[1:]
	}
	n := 0
	for ; n < len(rest) && '0' <= rest[n] && rest[n] <= '9'; n++ {
		port = min(10*port+int(rest[n]-'0'), 1<<16)
	}
	return port, n > 0
}

// longHeartbeat is larger than any heartbeat, in bytes.
const longHeartbeat = 1 << 10

// repeats remembers a client's most recent messages. Repeated compressed messages
// that refer to earlier ones become identical from the third on.
type repeats struct {
	hash maphash.Hash
	seen [8]uint64
	n    int
}

func newRepeats() *repeats { return &repeats{} }

func (r *repeats) add(p []byte) { _, _ = r.hash.Write(p) }

func (r *repeats) reset() { r.hash.Reset() }

// isNew reports whether the added message differs from the most recent ones.
func (r *repeats) isNew() bool {
	sum := r.hash.Sum64()
	if slices.Contains(r.seen[:min(r.n, len(r.seen))], sum) {
		return false
	}
	r.seen[r.n%len(r.seen)] = sum
	r.n++
	return true
}
