package vscode

import (
	"encoding/binary"
	"errors"
	"sync"
)

// messageSink receives the data messages of one direction of a WebSocket, in parts.
// The slice passed to data is valid during the call only.
type messageSink interface {
	begin(compressed bool) error
	data(p []byte) error
	end() error
}

// frames splits one direction's bytes into WebSocket frames (RFC 6455). It skips
// control frames, which may occur between the frames of a message.
type frames struct {
	masked  bool // as all data from a client
	deflate bool // permessage-deflate was negotiated

	head    [maxHead]byte
	have    int    // bytes of the head received
	payload bool   // the head is complete; left bytes follow
	left    uint64 // bytes left of the payload
	at      uint64 // position in the payload, for the mask
	mask    [4]byte
	control bool // this is a control frame
	fin     bool
	message bool // a message has begun and not ended
}

// maxHead is the longest head of a frame: two bytes, eight of length and four of
// the mask.
const maxHead = 14

var errFrame = errors.New("not a WebSocket frame")

const (
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPong         = 10
)

// read processes the next bytes. After an error it must not be called again.
func (f *frames) read(p []byte, to messageSink) error {
	for len(p) > 0 {
		if !f.payload {
			n := f.readHead(p)
			p = p[n:]
			if !f.payload {
				continue
			}
			if err := f.beginFrame(to); err != nil {
				return err
			}
		}
		n := int(min(f.left, uint64(len(p))))
		if err := f.readPayload(p[:n], to); err != nil {
			return err
		}
		p = p[n:]
		if f.left > 0 {
			continue
		}
		f.payload, f.have = false, 0
		if f.fin && !f.control {
			f.message = false
			if err := to.end(); err != nil {
				return err
			}
		}
	}
	return nil
}

// readHead consumes the head's bytes in p, at least one.
func (f *frames) readHead(p []byte) int {
	taken := 0
	for {
		need := f.headSize()
		n := copy(f.head[f.have:need], p[taken:])
		f.have, taken = f.have+n, taken+n
		if f.have == need && f.headSize() == need {
			f.payload = true
			return taken
		}
		if n == 0 {
			return taken
		}
	}
}

// headSize returns the length of the head, as far as the received bytes tell.
func (f *frames) headSize() int {
	if f.have < 2 {
		return 2
	}
	size := 2
	switch f.head[1] & 0x7f {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if f.head[1]&0x80 != 0 {
		size += 4
	}
	return size
}

// beginFrame parses a complete head.
func (f *frames) beginFrame(to messageSink) error {
	first, second := f.head[0], f.head[1]
	op, masked := first&15, second&0x80 != 0
	f.fin, f.control, f.at = first&0x80 != 0, op >= opClose, 0
	rest := f.head[2:f.have]
	switch length := second & 0x7f; length {
	case 126:
		f.left, rest = uint64(binary.BigEndian.Uint16(rest)), rest[2:]
	case 127:
		f.left, rest = binary.BigEndian.Uint64(rest), rest[8:]
	default:
		f.left = uint64(length)
	}
	if masked {
		copy(f.mask[:], rest)
	}
	compressed := first&0x40 != 0
	switch {
	case first&0x30 != 0, masked != f.masked, f.left > 1<<63-1:
		return errFrame
	case f.control:
		if op > opPong || !f.fin || compressed || f.left > 125 {
			return errFrame
		}
		return nil
	case op > opBinary, (op == opContinuation) != f.message, compressed && (!f.deflate || f.message):
		return errFrame
	case f.message:
		return nil
	}
	f.message = true
	return to.begin(compressed)
}

// unmasked holds buffers for unmasked data, because the relayed bytes must not be
// changed.
var unmasked = sync.Pool{New: func() any { return new([4 << 10]byte) }}

func (f *frames) readPayload(p []byte, to messageSink) error {
	f.left -= uint64(len(p))
	if f.control || len(p) == 0 {
		return nil
	}
	if !f.masked {
		return to.data(p)
	}
	plain := unmasked.Get().(*[4 << 10]byte)
	defer unmasked.Put(plain)
	for len(p) > 0 {
		n := min(len(p), len(plain))
		f.unmask(plain[:n], p[:n])
		if err := to.data(plain[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// unmask works on eight bytes at a time where possible.
func (f *frames) unmask(to, from []byte) {
	var turned [8]byte
	for i := range turned {
		turned[i] = f.mask[(f.at+uint64(i))&3]
	}
	f.at += uint64(len(from))
	mask := binary.LittleEndian.Uint64(turned[:])
	for len(from) >= 8 {
		binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(from)^mask)
		to, from = to[8:], from[8:]
	}
	for i := range from {
		to[i] = from[i] ^ turned[i]
	}
}
