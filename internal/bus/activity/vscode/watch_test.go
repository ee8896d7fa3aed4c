package vscode

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/bus/activity"
)

// each runs a test with and without compression.
func each(t *testing.T, test func(t *testing.T, compress bool)) {
	for _, compress := range []bool{false, true} {
		t.Run(fmt.Sprintf("compress=%v", compress), func(t *testing.T) {
			t.Parallel()
			test(t, compress)
		})
	}
}

func kinds(k ...activity.Kind) []activity.Kind { return k }

func (b *tab) expect(t *testing.T, what string, want ...activity.Kind) {
	t.Helper()
	if got := b.took(); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
	if len(b.lost) > 0 {
		t.Errorf("%s: it cannot be read any more: %v", what, b.lost)
	}
}

// Background traffic does not count; user activity does.
func TestSigns(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*keptSize)
	each(t, func(t *testing.T, compress bool) {
		for _, test := range []struct {
			what    string
			wanted  string
			message []byte
			want    []activity.Kind
		}{
			{"keep-alive", forHost, keepAlive, nil},
			{"an acknowledgement", forHost, vs(3, nil), nil},
			{"a watcher", forHost, call("$onFileEvent", `[0,{"created":[],"changed":["vscode.lock"]}]`), nil},
			{"the focus", forHost, call("$onDidChangeWindowFocus", "[true]"), nil},
			{"away", forHost, call(windowActive, "[false]"), nil},
			{"present", forHost, call(windowActive, "[true]"), kinds(activity.Presence, activity.Presence)},
			{"a key in an editor", forHost, call(modelChanged, `[{"path":"/a"},{"changes":["`+long+`"]},true]`), kinds(activity.Typing)},
			{"a file that changed on disk", forHost, call(modelChanged, `[{"path":"/a"},{"changes":["`+long+`true]"]},false]`), nil},
			{"the first key in a file", forHost, call(modelDirty, `[{"path":"/a"},true]`), kinds(activity.Typing)},
			{"an unchanged file", forHost, call(modelDirty, `[{"path":"/a"},false]`), nil},
			{"a file saved", forHost, call(modelSaved, `[{"path":"/a"}]`), kinds(activity.Typing)},
			{"completion", forHost, call(completion, `[4,{"path":"/a"}]`), kinds(activity.Typing)},
			{"the cursor", forHost, call(editorChanged, `["e",{"selections":{"selections":[],"source":"keyboard"}}]`), kinds(activity.Presence)},
			{"the mouse", forHost, call(editorChanged, `["e",{"selections":{"selections":[],"source":"mouse"}}]`), kinds(activity.Presence)},
			{"a hover", forHost, call(hover, `[4,{"path":"/a"}]`), kinds(activity.Presence)},
			{"the wheel", forHost, call(editorChanged, `["e",{"options":null,"selections":null,"visibleRanges":[{"startLineNumber":1}]}]`), kinds(activity.Presence)},
			{"a script moves the cursor", forHost, call(editorChanged, `["e",{"selections":{"selections":[],"source":"api"}}]`), nil},
			{"output, with shell integration", forHost, call(shellPrinted, `[1,"x"]`), kinds(activity.Output)},
			{"a method with another's name as argument", forHost, call("$log", `["$acceptModelSaved",true]`), nil},
			{"a reply", forHost, vs(kindRegular, []byte{7, 0, 0, 0, 1, 1, 17, '$', 'a'}), nil},
			{"a control message", forHost, vs(kindControl, call(modelSaved, "[]")[headSize:]), nil},
			{"a message of the other WebSocket", forHost, request(terminalChannel, terminalTyped, `[1,"l"]`), nil},

			{"telemetry", forManage, request("telemetry", "ping", `[]`), nil},
			{"a key in a terminal", forManage, request(terminalChannel, terminalTyped, `[1,"l"]`), kinds(activity.Typing)},
			{"a terminal's answer to a shell", forManage, request(terminalChannel, terminalTyped, `[1,"\u001b[?1;2c"]`), nil},
			{"a terminal's size", forManage, request(terminalChannel, "$resize", `[1,80,24]`), nil},
			{"a file written at load", forManage, request("remoteFilesystem", "writeFile", `["`+terminalTyped+`"]`), nil},
			{"a message of the other WebSocket", forManage, call(modelSaved, `[]`), nil},
			{"nothing", forManage, vs(kindRegular, nil), nil},
			{"cut short", forManage, vs(kindRegular, []byte{valueArray, 4, valueInt, requestPromise, valueInt}), nil},
		} {
			b := newTab(t, compress)
			b.greet(test.wanted)
			b.expect(t, "the greeting")
			b.Client(b.sends(test.message))
			b.expect(t, test.what, test.want...)
		}
	})
}

func TestTerminalOutput(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, compress bool) {
		b := newTab(t, compress)
		b.greet(forManage)
		for _, test := range []struct {
			what   string
			output []byte
			want   []activity.Kind
		}{
			{"output", fired(`{"id":1,"event":"Fri Nov 20\r\n"}`), kinds(activity.Output)},
			{"a large amount", fired(`{"id":12,"event":"` + strings.Repeat("abc", 100_000) + `"}`), kinds(activity.Output)},
			{"keep-alive", keepAlive, nil},
			{"a terminal's property", fired(`{"id":1,"event":{"property":{"type":"title","value":","}}}`), nil},
			{"a file changed", fired(`[{"type":0,"resource":{"path":",\"event\":\""}}]`), nil},
			{"a reply", vs(kindRegular, []byte{valueArray, 2, valueInt, 0xc9, 1, valueInt, 1, valueObject, 2, '{', '}'}), nil},
			{"output, again", fired(`{"id":1,"event":"Fri Nov 20\r\n"}`), kinds(activity.Output)},
		} {
			b.Server(b.prints(test.output))
			b.expect(t, test.what, test.want...)
		}

		// The other WebSocket is not inspected for it.
		b = newTab(t, compress)
		b.greet(forHost)
		b.Server(b.prints(fired(`{"id":1,"event":"x"}`)))
		b.expect(t, "the extension host's")
		if !b.server0().over.Load() {
			t.Error("it is still inspected")
		}
	})
}

// server0 is the watch's own side, which the packer hides.
func (b *tab) server0() *server { return &b.Watch.server }

// The bytes may be split anywhere, and pings may occur between frames.
func TestSplitAnywhere(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, compress bool) {
		random := rand.New(rand.NewPCG(1, 2))
		noise := make([]byte, 300)
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		whole := bytes.Join([][]byte{
			keepAlive, call(modelSaved, "[]"), call("$noise", string(noise)), call("$x", string(noise)+"]"), call(modelSaved, "[]"), keepAlive,
		}, nil)
		for _, size := range []int{1, 2, 3, 7, 13, 100, 1 << 20} {
			b := newTab(t, compress)
			b.greet(forHost)
			// One message in fragments, each after a ping.
			payload := whole
			first := byte(opBinary)
			if compress {
				payload, first = b.client.pack(whole), first|compressed
			}
			var wire []byte
			for at := 0; at < len(payload); at += 50 {
				end := min(at+50, len(payload))
				if end == len(payload) {
					first |= final
				}
				wire = append(wire, frame(final|9, []byte("ping"), true)...)
				wire = append(wire, frame(first, payload[at:end], true)...)
				first = opContinuation
			}
			wire = append(wire, b.sends(call(completion, "[]"))...)
			for part := range slices.Chunk(wire, size) {
				b.Client(part)
			}
			b.expect(t, fmt.Sprintf("in parts of %d", size), activity.Typing, activity.Typing, activity.Typing)
		}
	})
}

// While a user is present every message records presence, but does not replace
// their last action.
func TestPresence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTab(t, false)
		b.greet(forHost)
		b.Client(b.sends(call(windowActive, "[true]")))
		b.took()
		time.Sleep(time.Minute)
		b.Client(b.sends(keepAlive))
		b.expect(t, "still there", activity.Presence)
		b.Client(b.sends(call(modelSaved, "[]")))
		b.Client(b.sends(keepAlive))
		b.expect(t, "saved", activity.Typing)
		time.Sleep(actionWindow)
		b.Client(b.sends(keepAlive))
		b.expect(t, "still there", activity.Presence)
		b.Client(b.sends(call(windowActive, "[false]")))
		b.Client(b.sends(keepAlive))
		b.expect(t, "gone")
	})
}

// An editor that scrolls with growing text does not count.
func TestScrollingWithLogDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTab(t, false)
		b.greet(forHost)
		scroll := b.sends(call(editorChanged, `["e",{"visibleRanges":[{"startLineNumber":1}]}]`))
		for range 5 {
			b.Client(b.sends(call(modelChanged, `[{"path":"/log"},{},false]`)))
			b.Client(scroll)
			time.Sleep(time.Second)
			b.Client(scroll)
			b.expect(t, "it follows")
		}
		time.Sleep(2 * scrollWindow)
		b.Client(scroll)
		b.expect(t, "scrolling", activity.Presence)
	})
}

// With another protocol every non-empty message counts.
func TestOtherProtocols(t *testing.T) {
	t.Parallel()
	notVSCode := func(o *Options) { o.VSCode = false }
	each(t, func(t *testing.T, compress bool) {
		b := newTab(t, compress, notVSCode)
		b.Client(frame(final|9, []byte("ping"), true))
		b.Client(frame(final|10, []byte("pong"), true))
		b.Client(b.sends(nil))
		b.expect(t, "nothing in it")
		b.Client(b.sends([]byte("l")))
		b.expect(t, "one byte", activity.Client)
		b.Client(b.sends([]byte("l")))
		b.expect(t, "the same byte", activity.Client)
		b.Server(b.prints([]byte("something")))
		b.Client(frame(final|8, []byte{3, 232}, true))
		b.expect(t, "what comes back, and the end")

		// A message that only resembles VS Code's.
		for _, first := range []string{"hello", "\x01", "\x02" + strings.Repeat("\x00", 50), string(vs(kindRegular, []byte("x"))), string(vs(kindControl, nil)) + "x", strings.Repeat("\x02", 2*maxIdentify)} {
			b := newTab(t, compress)
			b.Client(b.sends([]byte(first)))
			if got := b.took(); !slices.Contains(got, activity.Client) {
				t.Errorf("%.20q did not count: %v", first, got)
			}
			b.Client(b.sends([]byte("x")))
			b.expect(t, "after it", activity.Client)
		}
		b = newTab(t, compress)
		b.greet(forTunnel)
		b.expect(t, "a tunnel's greeting")
		b.Client(b.sends([]byte("x")))
		b.expect(t, "in the tunnel", activity.Client)
	})
}

// Heartbeats of pages on forwarded ports do not count.
func TestForwarded(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/proxy/3000/": true, "/proxy/3000": true, "/absproxy/8888/api/kernels": true, "/proxy/": false, "/proxy/x/": false,
		"/proxy": false, "/proxyx/3000/": false, "/a/proxy/3000/": false, "/": false, "": false, "/3000/": false,
		"/Proxy/3000/": true, "/proxy/+3000x/": true, "/proxy/ 3000": true, "/proxy/99999999999999999999/": true, "/proxy/+/": false, "/proxy/+ 3000/": false, "/proxy//3000/": false, "proxy/3000": false,
	} {
		if ForwardedPort(path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
	each(t, func(t *testing.T, compress bool) {
		b := newTab(t, compress, func(o *Options) { o.VSCode, o.Forwarded = false, true })
		if compress { // as a browser without CompressAlone
			b.client.alone = false
		}
		heartbeat := func(n int) {
			for range n {
				b.Client(b.sends([]byte(`{"type":"ping"}`)))
				b.Client(b.sends([]byte(`{"event":"heartbeat"}`)))
			}
		}
		heartbeat(4)
		b.took() // each was new once
		heartbeat(10)
		b.Client(b.sends(nil))
		b.expect(t, "heartbeats")
		b.Client(b.sends([]byte("a key")))
		b.expect(t, "a key", activity.Client)
		b.Client(frame(final|opBinary, make([]byte, 2*longHeartbeat), true))
		if len(b.took()) == 0 {
			t.Error("a long message did not count")
		}
	})
}

// Traffic that cannot be decoded counts, on both sides, so that a workspace in use
// is not stopped.
func TestUndecodableTrafficCounts(t *testing.T) {
	t.Parallel()
	for what, garbage := range map[string][]byte{
		"no frame":                     bytes.Repeat([]byte{0xff}, 14),
		"not masked":                   frame(final|opBinary, []byte("x"), false),
		"not compressed":               frame(final|compressed|opBinary, bytes.Repeat([]byte{0xff}, 20), true),
		"no message":                   frame(final|opBinary, bytes.Repeat([]byte{0}, 20), true),
		"a message of unknown kind":    frame(final|opBinary, vs(200, nil), true),
		"a message within another":     append(frame(opBinary, vs(9, nil), true), frame(opBinary, vs(9, nil), true)...),
		"a continuation of no message": frame(final|opContinuation, vs(9, nil), true),
		"a final block":                frame(final|compressed|opBinary, []byte{1, 0, 0, 0xff, 0xff, 'x'}, true),
	} {
		b := newTab(t, true)
		b.greet(forHost)
		b.Client(garbage)
		if len(b.lost) != 1 {
			t.Errorf("%s: %v", what, b.lost)
		}
		b.took()
		b.Client([]byte{1})
		if got := b.took(); !slices.Equal(got, kinds(activity.Client)) {
			t.Errorf("%s: the next message counts as %v", what, got)
		}
	}

	for what, garbage := range map[string][]byte{
		"no frame":       bytes.Repeat([]byte{0xff}, 14),
		"masked":         frame(final|opBinary, []byte("x"), true),
		"not compressed": frame(final|compressed|opBinary, bytes.Repeat([]byte{0xff}, 20), false),
		"no message":     frame(final|opBinary, bytes.Repeat([]byte{0}, 20), false),
		"a final block":  frame(final|compressed|opBinary, []byte{1, 0, 0, 0xff, 0xff, 'x'}, false),
	} {
		b := newTab(t, true)
		b.greet(forManage)
		b.Server(garbage)
		b.Server(b.prints(fired(`{"id":1,"event":"x"}`)))
		if len(b.lost) != 1 {
			t.Errorf("the server's side, %s: lost %v", what, b.lost)
		}
		if got := b.took(); !slices.Equal(got, kinds(activity.Client, activity.Client)) {
			t.Errorf("the server's side, %s: its output counts as %v", what, got)
		}
		b.Client(b.sends(request(terminalChannel, terminalTyped, `[1,"l"]`)))
		if got := b.took(); !slices.Equal(got, kinds(activity.Typing)) {
			t.Errorf("the server's side, %s: the client's side reports %v", what, got)
		}
	}

	// The WebSocket of the extension host has no terminals.
	b := newTab(t, true)
	b.greet(forHost)
	b.Server(bytes.Repeat([]byte{0xff}, 14))
	b.Server(b.prints(keepAlive))
	b.expect(t, "the server's side of the extension host")
}

// On a busy machine the server's response is inspected before the client's first
// message. After a reconnect it begins with all output that the client has missed.
func TestServerInspectedBeforeClient(t *testing.T) {
	t.Parallel()
	missed := fired(`{"id":1,"event":"` + strings.Repeat("0123456789abcdef", 8<<10) + `"}`) // 128 KiB
	each(t, func(t *testing.T, compress bool) {
		greet := func(b *tab) {
			b.Client(b.sends(vs(kindControl, []byte(auth))))
			b.Client(b.sends(vs(kindControl, []byte(forManage))))
		}
		b := newTab(t, compress)
		b.Server(b.prints(missed))
		greet(b)
		b.expect(t, "the greeting")
		b.Server(b.prints(fired(`{"id":1,"event":"x"}`)))
		b.expect(t, "output after a long answer", activity.Output)

		// A message above the limit counts, because its content is unknown.
		b = newTab(t, false)
		for range maxEarly/len(missed) + 1 {
			b.Server(b.prints(missed))
		}
		greet(b)
		if got := b.took(); got != nil || b.lost != nil {
			t.Errorf("the greeting after a very long response counts as %v, lost %v", got, b.lost)
		}
		b.Server(b.prints(fired(`{"id":1,"event":"x"}`)))
		if got := b.took(); !slices.Equal(got, kinds(activity.Client)) || len(b.lost) != 1 {
			t.Errorf("output after a very long response counts as %v, lost %v", got, b.lost)
		}
	})
}

// A panic does not leave the package.
func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, compress bool) {
		var lost []error
		w := New(Options{VSCode: true, Touch: func(activity.Kind) { panic("a fault") }, OnError: func(_ Side, err error) { lost = append(lost, err) },
			Extensions: []string{"permessage-deflate; client_no_context_takeover"}})
		defer w.Close()
		b := newTab(t, compress)
		b.Watch = w
		b.greet(forManage)
		for range 3 {
			w.Client(b.sends(request(terminalChannel, terminalTyped, `[1,"l"]`)))
			w.Server(b.prints(fired(`{"id":1,"event":"x"}`)))
		}
		if len(lost) != 2 {
			t.Errorf("errors %v", lost)
		}
	})
}

func TestInputAfterClose(t *testing.T) {
	t.Parallel()
	b := newTab(t, true)
	b.greet(forManage)
	half := b.sends(request(terminalChannel, terminalTyped, `[1,"l"]`))
	b.Client(half[:len(half)/2])
	b.Close()
	b.Close()
	b.Client(half[len(half)/2:])
	b.Server(b.prints(fired(`{"id":1,"event":"x"}`)))
	b.expect(t, "closed")
}

// endless is the beginning of an impossibly large message.
var endless = append([]byte{kindRegular, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, bytes.Repeat([]byte("x"), 100<<10)...)

// Memory per connection is limited.
func TestMemoryIsLimited(t *testing.T) {
	const count = 100
	before := heap()
	tabs := make([]*tab, count)
	for i := range tabs {
		b := newTab(t, true)
		b.greet(forManage)
		b.Client(frame(compressed|opBinary, b.client.pack(endless), true))
		b.Server(frame(compressed|opBinary, b.server.pack(endless), false))
		b.client, b.server = nil, nil
		tabs[i] = b
	}
	each := (heap() - before) / count
	t.Logf("a connection holds %d KiB", each>>10)
	if each > 128<<10 {
		t.Errorf("a connection holds %d KiB", each>>10)
	}
	runtime.KeepAlive(tabs)
}

// The work per connection is limited, too.
func TestDecompressionBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bomb := append(newPacker(t, true).pack(make([]byte, 16<<20)), syncTail...)
		b := newTab(t, true)
		b.greet(forManage)
		b.Server(frame(compressed|opBinary, append(b.server.pack(endless), syncTail...), false))
		for n := 0; b.server0().err == nil; n++ {
			if n > budgetAtOnce/(16<<20) {
				t.Fatal("it is decompressed without end")
			}
			b.Server(frame(opContinuation, bomb, false))
		}
		if len(b.lost) != 1 || !strings.Contains(b.lost[0].Error(), errTooMuch.Error()) {
			t.Errorf("it was given up for %v", b.lost)
		}
	})
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // the second run empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func TestCompressAlone(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{
		"permessage-deflate":                             "permessage-deflate; client_no_context_takeover",
		"permessage-deflate; server_no_context_takeover": "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
		"permessage-deflate;client_no_context_takeover":  "permessage-deflate;client_no_context_takeover",
		"permessage-deflate, foo":                        "permessage-deflate, foo",
		"x-webkit-deflate-frame":                         "x-webkit-deflate-frame",
		"":                                               "",
	} {
		h := http.Header{}
		if before != "" {
			h.Set("Sec-WebSocket-Extensions", before)
		}
		CompressAlone(h)
		if got := h.Get("Sec-WebSocket-Extensions"); got != after || before == "" && len(h) > 0 {
			t.Errorf("%q has become %q", before, got)
		}
	}
	if a := parseExtensions([]string{"foo; bar", " permessage-deflate ; server_no_context_takeover;client_max_window_bits=15"}); a != (extensions{deflate: true, serverAlone: true}) {
		t.Errorf("read as %+v", a)
	}
}

// A client without CompressAlone is decoded, too.
func TestTakeover(t *testing.T) {
	t.Parallel()
	b := newTab(t, true, func(o *Options) { o.Extensions = []string{"permessage-deflate"} })
	b.client.alone = false
	b.greet(forHost)
	for range 3 {
		b.Client(b.sends(call(modelSaved, "[]")))
		b.expect(t, "saved", activity.Typing)
	}
	// And so is a server with context takeover.
	b = newTab(t, true, func(o *Options) { o.Extensions = []string{"permessage-deflate; server_no_context_takeover"} })
	b.client.alone, b.server.alone = false, true
	b.greet(forManage)
	for range 3 {
		b.Server(b.prints(fired(`{"id":1,"event":"x"}`)))
		b.expect(t, "printed", activity.Output)
	}
}
