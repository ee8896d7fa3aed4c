package proxy

import (
	"bytes"
	"encoding/binary"
	"testing"

	"codehub/internal/bus/activity"
)

// clientFrame returns a WebSocket frame as a client sends it.
func clientFrame(first byte, payload []byte) []byte {
	out := []byte{first}
	switch n := len(payload); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	mask := []byte{0x5a, byte(len(payload)), 0xc3, first}
	out = append(out, mask...)
	for i, b := range payload {
		out = append(out, b^mask[i&3])
	}
	return out
}

// The messages of a client that are not empty count, short ones as typed. Of an application on
// a port, what was sent just before does not count, such as heartbeats. What cannot be decoded
// counts, and nothing does if the page reports its use. How the bytes are split does not
// matter.
func TestMessages(t *testing.T) {
	t.Parallel()
	const text, binaryPart, rest, ping, pong, compressed = 0x81, 0x02, 0x80, 0x89, 0x8a, 0xc1
	heartbeats := bytes.Repeat(append(clientFrame(text, []byte(`{"type":"ping"}`)), clientFrame(text, []byte(`{"event":"heartbeat"}`))...), 4)
	for _, c := range []struct {
		name                string
		before, sent        []byte
		forwarded, reported bool
		counts, typed       bool
	}{
		{name: "a key", sent: clientFrame(text, []byte("x")), counts: true, typed: true},
		{name: "a key on a port", sent: clientFrame(text, []byte("x")), forwarded: true, counts: true, typed: true},
		{name: "a long message", sent: clientFrame(text, make([]byte, maxTyped)), counts: true},
		{name: "no data", sent: clientFrame(text, nil)},
		{name: "no data, compressed", sent: clientFrame(compressed, []byte{0})},
		{name: "no data on a port, compressed", sent: clientFrame(compressed, []byte{2, 0}), forwarded: true},
		{name: "a compressed key", sent: clientFrame(compressed, []byte{0xaa, 0x04, 0x00}), counts: true, typed: true},
		{name: "pings", sent: append(clientFrame(ping, []byte("data")), clientFrame(pong, []byte("data"))...)},
		{name: "heartbeats", sent: heartbeats, counts: true, typed: true},
		{name: "heartbeats of a port", before: heartbeats, sent: heartbeats, forwarded: true},
		{name: "a key of a port after heartbeats", before: heartbeats, sent: clientFrame(text, []byte("x")), forwarded: true, counts: true, typed: true},
		{name: "a long message to a port, again", before: clientFrame(text, make([]byte, 2*longHeartbeat)), sent: clientFrame(text, make([]byte, 2*longHeartbeat)), forwarded: true, counts: true, typed: true},
		{name: "a message in parts with a ping between", before: append(clientFrame(binaryPart, []byte("a")), clientFrame(ping, nil)...), sent: clientFrame(rest, []byte("b")), counts: true, typed: true},
		{name: "not masked", before: []byte{text, 1, 'x'}, sent: []byte("more"), counts: true},
		{name: "no frames", before: bytes.Repeat([]byte{0xff}, 14), sent: []byte("x"), counts: true},
		{name: "a long ping", before: clientFrame(ping, make([]byte, 126)), sent: []byte("x"), counts: true},
		{name: "a key, reported", sent: clientFrame(text, make([]byte, 20)), reported: true, typed: true},
		{name: "a keep-alive, reported", sent: clientFrame(compressed, make([]byte, 4)), reported: true},
	} {
		for _, size := range []int{1 << 20, 1} {
			if size == 1 && (c.reported || c.name == "a long message") { // by what is relayed at once
				continue
			}
			var touched, typed int
			m := &messages{touch: func(k activity.Kind) { touched++ }, typed: func() { typed++ }, forwarded: c.forwarded, reported: c.reported}
			feed := func(p []byte) {
				for len(p) > 0 {
					n := min(size, len(p))
					m.sent(p[:n])
					p = p[n:]
				}
			}
			feed(c.before)
			touched, typed = 0, 0
			feed(c.sent)
			if (touched > 0) != c.counts || (typed > 0) != c.typed {
				t.Errorf("%s, %d bytes at once: %d activities, typed %d times", c.name, size, touched, typed)
			}
			m.close()
			touched, typed = 0, 0
			feed(c.sent)
			if touched+typed > 0 {
				t.Errorf("%s counts after the end", c.name)
			}
		}
	}
}
