package vscode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"compress/flate"

	"codehub/internal/bus/activity"
)

// script records the calls of a messageSink.
type script struct{ bytes.Buffer }

func (s *script) begin(compressed bool) error { fmt.Fprintf(s, "<%v:", compressed); return nil }
func (s *script) data(p []byte) error         { s.Write(p); return nil }
func (s *script) end() error                  { s.WriteString(">"); return nil }

// FuzzFrames: the result does not depend on how the bytes are split.
func FuzzFrames(f *testing.F) {
	f.Add(frame(final|opBinary, []byte("hello"), true), true, byte(1))
	f.Add(frame(final|opBinary, bytes.Repeat([]byte("x"), 200), false), false, byte(3))
	f.Add(append(frame(opText, []byte("a"), true), append(frame(final|9, nil, true), frame(final, []byte("b"), true)...)...), true, byte(2))
	f.Add(frame(final|opBinary, make([]byte, 70_000), true), true, byte(255))
	f.Add([]byte{0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, true, byte(1))
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, true, byte(1))
	f.Add([]byte{0xf2, 0x80, 1, 2, 3, 4}, true, byte(1))
	f.Fuzz(func(t *testing.T, wire []byte, masked bool, cut byte) {
		kept := slices.Clone(wire)
		var whole, parts script
		one, many := frames{masked: masked, deflate: true}, frames{masked: masked, deflate: true}
		err := one.read(wire, &whole)
		var err2 error
		for p := range slices.Chunk(wire, int(cut)+1) {
			if err2 = many.read(p, &parts); err2 != nil {
				break
			}
		}
		if (err == nil) != (err2 == nil) || whole.String() != parts.String() {
			t.Fatalf("in one: %q, %v; in parts of %d: %q, %v", whole.String(), err, int(cut)+1, parts.String(), err2)
		}
		if !bytes.Equal(kept, wire) {
			t.Fatal("the relayed bytes were changed")
		}
	})
}

// FuzzInflate: the result equals the decompressor's, however the bytes are split.
func FuzzInflate(f *testing.F) {
	p := newPacker(f, true)
	f.Add(p.pack([]byte("hello hello hello")), byte(1), false)
	f.Add(p.pack(bytes.Repeat([]byte{0}, 100_000)), byte(7), true)
	f.Add([]byte{1, 0, 0, 0xff, 0xff}, byte(0), false)
	f.Add([]byte{0xff, 0xff}, byte(0), true)
	f.Fuzz(func(t *testing.T, packed []byte, cut byte, takeover bool) {
		if len(packed) == 0 {
			return // required at the end of a message
		}
		var got bytes.Buffer
		const most = 1 << 20
		z := inflater{takeover: takeover, budget: newBudget(), out: func(p []byte) error {
			if got.Len() > most {
				return errTooMuch
			}
			got.Write(p)
			return nil
		}}
		defer z.close()
		var err error
		for p := range slices.Chunk(packed, int(cut)+1) {
			if err = z.write(p); err != nil {
				break
			}
		}
		if err == nil {
			err = z.end()
		}
		want, failed := io.ReadAll(io.LimitReader(flate.NewReader(io.MultiReader(bytes.NewReader(packed), bytes.NewReader(messageTail))), most))
		if !bytes.HasPrefix(want, got.Bytes()[:min(got.Len(), len(want))]) {
			t.Fatalf("the decompressed data differs: %q, %q", got.Bytes(), want)
		}
		if takeover && err == nil {
			return // the next message will show whether this one was truncated
		}
		if failed != nil && err == nil {
			t.Fatalf("invalid data is accepted: %v", failed)
		}
		if failed == nil && err == nil && got.Len() < len(want) {
			t.Fatalf("%d bytes of %d", got.Len(), len(want))
		}
		if err == nil { // usable for another message
			got.Reset()
			if err := z.write(newPacker(t, true).pack([]byte("again"))); err != nil {
				t.Fatal(err)
			}
			if err := z.end(); err != nil || got.String() != "again" {
				t.Fatalf("the next message is %q, %v", got.String(), err)
			}
		} else if again := z.write([]byte{0}); !errors.Is(again, err) {
			t.Fatalf("after %v: %v", err, again)
		}
	})
}

// FuzzMessages: the result does not depend on the split, and the kept bytes are
// limited.
func FuzzMessages(f *testing.F) {
	f.Add(slices.Concat(keepAlive, call(modelSaved, "[]"), fired(`{"id":1,"event":"x"}`)), byte(0))
	f.Add(vs(kindRegular, bytes.Repeat([]byte("x"), 3000)), byte(100))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3}, byte(3))
	f.Add(vs(200, nil), byte(3))
	f.Add(request(terminalChannel, terminalTyped, "[]"), byte(3))
	f.Fuzz(func(t *testing.T, input []byte, cut byte) {
		read := func(size int) (string, error) {
			var out bytes.Buffer
			m := messages{}
			m.take = func(m message) {
				fmt.Fprintf(&out, "%d %d %q %q %d %d %d\n", m.kind, m.size, m.body, m.last, signOfHost(m), signOfManagement(m), signOfServer(m))
				if len(m.body) > keptSize || len(m.last) > lastSize {
					t.Fatalf("%d and %d bytes are kept", len(m.body), len(m.last))
				}
				if !bytes.HasSuffix(m.body, m.last) && m.size <= keptSize {
					t.Fatalf("%q does not end with %q", m.body, m.last)
				}
			}
			for p := range slices.Chunk(input, size) {
				if err := m.read(p); err != nil {
					return out.String(), err
				}
			}
			return out.String(), nil
		}
		whole, err := read(len(input) + 1)
		parts, err2 := read(int(cut) + 1)
		if whole != parts || (err == nil) != (err2 == nil) {
			t.Fatalf("in one:\n%s%v\nin parts:\n%s%v", whole, err, parts, err2)
		}
	})
}

// FuzzWatch: no input from either side causes a failure.
func FuzzWatch(f *testing.F) {
	b := newTab(f, true)
	hello := slices.Concat(b.sends(vs(kindControl, []byte(auth))), b.sends(vs(kindControl, []byte(forManage))))
	f.Add(slices.Concat(hello, b.sends(request(terminalChannel, terminalTyped, "[]"))), b.prints(fired(`{"id":1,"event":"x"}`)), true, byte(9))
	f.Add(hello, []byte{0xff, 0xff}, true, byte(0))
	f.Add([]byte{1, 2, 3}, []byte{}, false, byte(0))
	f.Fuzz(func(t *testing.T, client, server []byte, own bool, cut byte) {
		w := New(Options{VSCode: own, Forwarded: cut&1 != 0, Touch: func(activity.Kind) {}, Extensions: []string{"permessage-deflate; client_no_context_takeover"},
			OnError: func(_ Side, err error) {
				if bytes.Contains([]byte(err.Error()), []byte("panic")) {
					t.Error(err)
				}
			}})
		defer w.Close()
		for len(client)+len(server) > 0 {
			n := min(int(cut)+1, len(client))
			w.Client(client[:n])
			client = client[n:]
			n = min(int(cut)+1, len(server))
			w.Server(server[:n])
			server = server[n:]
		}
	})
}

// BenchmarkWatch measures the inspection of terminal output, of key presses, and of
// another protocol.
func BenchmarkWatch(b *testing.B) {
	run := func(name string, vscode bool, message []byte, server bool) {
		b.Run(name, func(b *testing.B) {
			w := newTab(b, true, func(o *Options) { o.VSCode = vscode; o.Touch = func(activity.Kind) {} })
			wire := func() []byte { return w.sends(message) }
			if server {
				wire = func() []byte { return w.prints(message) }
			}
			if vscode {
				w.greet(forManage)
			}
			// With context takeover the third message is representative.
			first, second, sent := wire(), wire(), wire()
			inspect := w.Client
			if server {
				inspect = w.Server
			}
			inspect(first)
			inspect(second)
			b.SetBytes(int64(len(message)))
			b.ReportAllocs()
			for b.Loop() {
				w.Watch.server.inflater.budget, w.Watch.client.inflater.budget = newBudget(), newBudget()
				for p := range slices.Chunk(sent, 32<<10) {
					inspect(p)
				}
			}
		})
	}
	text := bytes.Repeat([]byte("drwxr-xr-x 2 coder coder 4096 Nov 20 18:27 src\\r\\n"), 2000)
	run("output", true, fired(`{"id":1,"event":"`+string(text)+`"}`), true)
	run("key", true, request(terminalChannel, terminalTyped, `[1,"l"]`), false)
	run("keep-alive", true, keepAlive, false)
	run("foreign", false, text, false)
}
