package vscode

import (
	"hash/maphash"
	"slices"
	"strings"

	"codehub/internal/activity"
)

// A compressed message of one byte of data takes three bytes: what is shorter
// has nothing in it.
const compressedNothing = 2

// foreign is given what clients of other WebSockets send, in parts.
func (c *client) foreign(p []byte) {
	if c.compressed && c.size <= compressedNothing {
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
	if c.size > 0 && c.size <= longHeartbeat && c.repeats.isNew() && !(c.compressed && c.size <= compressedNothing) {
		c.touch(activity.Client)
	}
	c.repeats.reset()
}

// ForwardedPort reports whether a path of an IDE leads to a program that
// listens in its workspace, as code-server's /proxy/3000/ and /absproxy/3000/.
//
// Whoever opens a page there uses the workspace, and so does what they send
// through its WebSockets, which may be a notebook or a terminal of another
// make. But development servers' pages send heartbeats as data and poll with
// POST, and a preview left open beside the IDE must not keep its workspace
// running for ever. So of WebSockets only messages count that the page has
// not sent just before, and of requests none but the opening of a page. What
// is lost is little: a heartbeat with a number in it counts, and somebody who
// only submits forms by script does not.
func ForwardedPort(path string) bool {
	rest, ok := strings.CutPrefix(path, "/proxy/")
	if !ok {
		rest, ok = strings.CutPrefix(path, "/absproxy/")
	}
	port, _, _ := strings.Cut(rest, "/")
	return ok && port != "" && strings.Trim(port, "0123456789") == ""
}

// longHeartbeat is more than any has; bytes.
const longHeartbeat = 1 << 10

// repeats remembers what a client has sent last. Compressed messages that
// refer to earlier ones become the same with the third of a kind.
type repeats struct {
	hash maphash.Hash
	seen [8]uint64
	n    int
}

func newRepeats() *repeats { return &repeats{} }

func (r *repeats) add(p []byte) { _, _ = r.hash.Write(p) }

func (r *repeats) reset() { r.hash.Reset() }

// isNew reports whether the message that was added is none of the last.
func (r *repeats) isNew() bool {
	sum := r.hash.Sum64()
	if slices.Contains(r.seen[:min(r.n, len(r.seen))], sum) {
		return false
	}
	r.seen[r.n%len(r.seen)] = sum
	r.n++
	return true
}
