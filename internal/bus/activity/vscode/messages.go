package vscode

import (
	"encoding/binary"
	"errors"
)

// messages splits one direction's data into VS Code's protocol messages, which are
// independent of WebSocket messages. It keeps the first and last bytes of each
// body, whatever its stated length.
type messages struct {
	take func(message)

	head [headSize]byte
	have int
	left uint32 // bytes left of the body
	body []byte
	last [lastSize]byte
}

// message is a message of VS Code's persistent protocol.
type message struct {
	kind byte
	size uint32 // of the whole body
	body []byte // its first bytes, at most keptSize; valid during the call
	last []byte // its last bytes, at most lastSize
}

const (
	headSize = 13 // kind, ID, acknowledged ID, length of the body
	keptSize = 1 << 10
	lastSize = 8

	kindRegular = 1
	kindControl = 2
	maxKind     = 15 // nine are defined
)

var errMessage = errors.New("not a message of VS Code's protocol")

// read processes the next bytes. After an error it must not be called again.
func (m *messages) read(p []byte) error {
	for len(p) > 0 {
		if m.have < headSize {
			n := copy(m.head[m.have:], p)
			m.have, p = m.have+n, p[n:]
			if m.have < headSize {
				return nil
			}
			if kind := m.head[0]; kind == 0 || kind > maxKind {
				return errMessage
			}
			m.left, m.body = m.size(), m.body[:0]
		}
		n := int(min(uint64(m.left), uint64(len(p))))
		m.keep(p[:n])
		m.left, p = m.left-uint32(n), p[n:]
		if m.left == 0 {
			m.have = 0
			m.take(message{kind: m.head[0], size: m.size(), body: m.body, last: m.last[lastSize-min(lastSize, int(min(m.size(), lastSize))):]})
		}
	}
	return nil
}

// whole reports whether no message is incomplete.
func (m *messages) whole() bool { return m.have == 0 }

func (m *messages) size() uint32 { return binary.BigEndian.Uint32(m.head[9:]) }

func (m *messages) keep(p []byte) {
	if room := keptSize - len(m.body); room > 0 {
		m.body = append(m.body, p[:min(room, len(p))]...)
	}
	if len(p) >= lastSize {
		copy(m.last[:], p[len(p)-lastSize:])
		return
	}
	copy(m.last[:], m.last[len(p):])
	copy(m.last[lastSize-len(p):], p)
}
