package vscode

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"codehub/internal/bus/activity"
)

// frame returns a WebSocket frame; a client's is masked.
func frame(first byte, payload []byte, masked bool) []byte {
	out := []byte{first}
	bit := byte(0)
	if masked {
		bit = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		out = append(out, bit|byte(n))
	case n <= 0xffff:
		out = binary.BigEndian.AppendUint16(append(out, bit|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, bit|127), uint64(n))
	}
	if !masked {
		return append(out, payload...)
	}
	mask := [4]byte{0x11, 0xfe, 0x80, 0x37}
	out = append(out, mask[:]...)
	for i, b := range payload {
		out = append(out, b^mask[i&3])
	}
	return out
}

const (
	final      = 0x80
	compressed = 0x40
)

// packer compresses messages as one side of a WebSocket does.
type packer struct {
	out   bytes.Buffer
	w     *flate.Writer
	alone bool
}

func newPacker(t testing.TB, alone bool) *packer {
	t.Helper()
	p := &packer{alone: alone}
	var err error
	if p.w, err = flate.NewWriter(&p.out, 6); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *packer) pack(message []byte) []byte {
	p.out.Reset()
	if p.alone {
		p.w.Reset(&p.out)
	}
	_, _ = p.w.Write(message) // to memory
	_ = p.w.Flush()
	return slices.Clone(bytes.TrimSuffix(p.out.Bytes(), syncTail))
}

// vs returns a message of VS Code's protocol.
func vs(kind byte, body []byte) []byte {
	out := make([]byte, headSize, headSize+len(body))
	out[0] = kind
	binary.BigEndian.PutUint32(out[9:], uint32(len(body)))
	return append(out, body...)
}

const (
	auth      = `{"type":"auth","auth":"00000000000000000000","data":"0123"}`
	forManage = `{"type":"connectionType","commit":"c0ffee","signedData":"x","desiredConnectionType":1}`
	forHost   = `{"type":"connectionType","commit":"c0ffee","signedData":"x","desiredConnectionType":2,"args":{"language":"en"}}`
	forTunnel = `{"type":"connectionType","commit":"c0ffee","signedData":"x","desiredConnectionType":3}`
)

// keepAlive is sent by a window every 5 s.
var keepAlive = vs(9, nil)

// call is a call from a window to its extension host.
func call(method, args string) []byte {
	body := append([]byte{2, 0, 0, 0, 7, 99, byte(len(method))}, method...)
	body = binary.BigEndian.AppendUint32(body, uint32(len(args)))
	return vs(kindRegular, append(body, args...))
}

// request is a request from a window to the server.
func request(channel, name, args string) []byte {
	body := []byte{valueArray, 4, valueInt, requestPromise, valueInt, 0x85, 0x02, valueString, byte(len(channel))}
	body = append(body, channel...)
	body = append(body, valueString, byte(len(name)))
	body = append(body, name...)
	body = append(body, valueArray, 1, valueObject)
	return vs(kindRegular, append(binary.AppendUvarint(body, uint64(len(args))), args...))
}

// fired is an event from the server to a window.
func fired(event string) []byte {
	body := []byte{valueArray, 2, valueInt, 0xcc, 0x01, valueInt, 0x19, valueObject}
	return vs(kindRegular, append(binary.AppendUvarint(body, uint64(len(event))), event...))
}

// tab is an IDE's WebSocket with both sides, and the recorded activity.
type tab struct {
	*Watch
	client, server *packer // nil: not compressed

	mu   sync.Mutex
	seen []activity.Kind
	lost []error
}

func newTab(t testing.TB, compress bool, change ...func(*Options)) *tab {
	t.Helper()
	b := &tab{}
	o := Options{VSCode: true, Touch: b.touch, OnError: func(_ Side, err error) { b.lost = append(b.lost, err) }}
	if compress {
		o.Extensions = []string{"permessage-deflate; client_no_context_takeover"}
		b.client, b.server = newPacker(t, true), newPacker(t, false)
	}
	for _, f := range change {
		f(&o)
	}
	b.Watch = New(o)
	t.Cleanup(b.Close)
	return b
}

func (b *tab) touch(kind activity.Kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, kind)
}

// took returns the activity recorded since the last call.
func (b *tab) took() []activity.Kind {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen
	b.seen = nil
	return seen
}

// sends returns the frames of a client's message.
func (b *tab) sends(message []byte) []byte { return b.wire(message, b.client, true) }

// prints returns the frames of a server's message.
func (b *tab) prints(message []byte) []byte { return b.wire(message, b.server, false) }

func (b *tab) wire(message []byte, with *packer, masked bool) []byte {
	if with == nil {
		return frame(final|opBinary, message, masked)
	}
	return frame(final|compressed|opBinary, with.pack(message), masked)
}

// greet sends the first messages of VS Code's protocol.
func (b *tab) greet(wanted string) {
	b.Client(b.sends(vs(kindControl, []byte(auth))))
	b.Server(b.prints(vs(kindControl, []byte(`{"type":"sign","data":"y"}`))))
	b.Client(b.sends(vs(kindControl, []byte(wanted))))
	b.Server(b.prints(vs(kindControl, []byte(`{"type":"ok"}`))))
}
