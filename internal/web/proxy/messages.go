package proxy

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"

	"codehub/internal/bus/activity"
)

const (
	// longHeartbeat is larger than any heartbeat of an application, in bytes.
	longHeartbeat = 1 << 10
	// maxKeepAlive is larger than what an open tab of VS Code without a user sends regularly, and
	// smaller than a key.
	maxKeepAlive = 16
	// maxTyped is the size from which a message is not typed.
	maxTyped = 4 << 10
	// maxEmptyCompressed is the size of an empty message that is compressed. One with a byte of
	// data has three bytes.
	maxEmptyCompressed = 2
)

// messages finds activity in what a client sends on a WebSocket: every message that is not
// empty counts. For an application on a port (forwarded), whose page may send heartbeats, a
// short message counts only if it differs from the most recent ones. What cannot be decoded
// counts. Nothing counts on a WebSocket whose page reports its use (reported).
type messages struct {
	touch               func(activity.Kind)
	typed               func() // something was sent that may be a key
	forwarded, reported bool

	mu   sync.Mutex // for sent and close
	over bool
	lost bool // it cannot be decoded

	// The frame that comes (RFC 6455).
	head    []byte
	mask    []byte // a part of head, once that is complete
	left    uint64 // bytes left of the payload
	at      int    // position in the payload
	control bool

	// The message.
	size       int
	compressed bool
	hash       maphash.Hash
	seen       [8]uint64 // the most recent ones
	n          int
}

// close ends the inspection; no callbacks follow.
func (m *messages) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
}

// sent inspects bytes after they were relayed. It neither changes nor keeps them.
func (m *messages) sent(p []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reported {
		if !m.over && len(p) > maxKeepAlive && len(p) < maxTyped {
			m.typed()
		}
		return
	}
	for len(p) > 0 && !m.over {
		if m.lost {
			m.touch(activity.Client)
			return
		}
		if m.mask == nil {
			m.head, p = append(m.head, p[0]), p[1:]
			if !m.begin() {
				continue
			}
		}
		n := int(min(m.left, uint64(len(p))))
		m.data(p[:n])
		if p = p[n:]; m.left == 0 {
			m.end()
		}
	}
}

// begin parses the head, and reports whether it is complete.
func (m *messages) begin() bool {
	h := m.head
	if len(h) < 2 {
		return false
	}
	op, length, size := h[0]&15, uint64(h[1]&0x7f), 2
	m.control = op >= 8
	if h[1]&0x80 == 0 || op > 2 && !m.control || op > 10 || m.control && length > 125 {
		m.lost = true
		return false
	}
	switch length {
	case 126:
		size = 4
	case 127:
		size = 10
	}
	if len(h) < size+4 {
		return false
	}
	switch length {
	case 126:
		length = uint64(binary.BigEndian.Uint16(h[2:]))
	case 127:
		length = binary.BigEndian.Uint64(h[2:])
	}
	m.mask, m.left, m.at = h[size:], length, 0
	if !m.control && op != 0 { // not a continuation
		m.size, m.compressed = 0, h[0]&0x40 != 0
		m.hash.Reset()
	}
	return true
}

func (m *messages) data(p []byte) {
	m.left -= uint64(len(p))
	if m.control || len(p) == 0 {
		return
	}
	m.size += len(p)
	if m.forwarded && m.size <= longHeartbeat {
		for _, b := range p {
			_ = m.hash.WriteByte(b ^ m.mask[m.at&3])
			m.at++
		}
		return
	}
	if !m.empty() {
		m.count()
	}
}

func (m *messages) end() {
	whole := m.head[0]&0x80 != 0 && !m.control
	m.head, m.mask = m.head[:0], nil
	if whole && m.forwarded && m.size <= longHeartbeat && !m.empty() && m.isNew() {
		m.count()
	}
}

func (m *messages) empty() bool {
	return m.size == 0 || m.compressed && m.size <= maxEmptyCompressed
}

func (m *messages) count() {
	m.touch(activity.Client)
	if m.size < maxTyped {
		m.typed()
	}
}

// isNew reports whether the message differs from the most recent ones. Repeated compressed
// messages that refer to earlier ones become identical from the third on.
func (m *messages) isNew() bool {
	sum := m.hash.Sum64()
	if slices.Contains(m.seen[:min(m.n, len(m.seen))], sum) {
		return false
	}
	m.seen[m.n%len(m.seen)] = sum
	m.n++
	return true
}
