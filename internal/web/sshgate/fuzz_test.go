package sshgate

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// What clients send never panics, and what is accepted is within its limits.
func FuzzClientInput(f *testing.F) {
	f.Add(ssh.Marshal(ptyRequest{Term: "xterm", Cols: 80, Rows: 24, Modes: "\x01\x00\x00\x00\x03\x00"}))
	f.Add(ssh.Marshal(envRequest{"LC_ALL", "C"}))
	f.Add(ssh.Marshal(signalRequest{"TERM"}))
	f.Add(ssh.Marshal(tcpChannel{"localhost", 80, "127.0.0.1", 1}))
	f.Add(ssh.Marshal(forwardRequest{"", 0}))
	f.Add(ssh.Marshal(streamlocalRequest{"/tmp/s"}))
	f.Add([]byte("ssh-ed25519 AAAA"))
	f.Add(append([]byte("SSH-2.0-x\r\n"), offerPacket("aes128-ctr")...))
	c := &connection{}
	f.Fuzz(func(t *testing.T, b []byte) {
		if term, ok := parsePTY(b); ok && (len(term.Name) > maxTerm || strings.ContainsFunc(term.Name, control)) {
			t.Errorf("terminal %q", term.Name)
		}
		if entry, ok := parseEnv(b); ok && (strings.ContainsRune(entry, 0) || !acceptedEnv(entry[:strings.IndexByte(entry, '=')])) {
			t.Errorf("environment %q", entry)
		}
		if name, ok := parseSignal(b); ok && !knownSignals[name] {
			t.Errorf("signal %q", name)
		}
		for _, kind := range []string{"tcpip-forward", "streamlocal-forward@openssh.com"} {
			if key, ok := c.listenKey(&ssh.Request{Type: kind, Payload: b}); ok && key.network == "unix" && !validSocket(key.address) {
				t.Errorf("listener %+v", key)
			}
		}
		if k, err := ParseKey(string(b)); err == nil && (len(k.Hash) != 32 || strings.ContainsAny(k.Line, "\n\r")) {
			t.Errorf("key %+v", k)
		}
		if _, err := offerOf(b); errors.Is(err, errShort) && len(b) > maxVersion+1+4+maxOffer {
			t.Error("more is read than a client's version and first packet")
		}
		if p := plain(string(b)); strings.ContainsAny(p, "\x1b\r\n\x07") {
			t.Errorf("plain text %q", p)
		}
	})
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"LANG": true, "LC_ALL": true, "LC_TIME": true, "TZ": true, "GIT_PROTOCOL": true,
		"": false, "LC_": false, "LC_all": false, "LD_PRELOAD": false, "PATH": false, "LC_A=B": false,
	} {
		if _, got := parseEnv(ssh.Marshal(envRequest{name, "x"})); got != ok {
			t.Errorf("the variable %q: %v", name, got)
		}
	}
	if _, ok := parseEnv(ssh.Marshal(envRequest{"LANG", "a\x00b"})); ok {
		t.Error("a value with NUL was accepted")
	}
	for path, ok := range map[string]bool{"/tmp/s": true, "": false, "s": false, "../s": false, "/a\x00b": false, "/" + strings.Repeat("x", 107): false} {
		if validSocket(path) != ok {
			t.Errorf("the socket %q: %v", path, !ok)
		}
	}
	for host, ok := range map[string]bool{"localhost": true, "::1": true, "127.0.0.1": true, "": false, "a b": false, "a/b": false, "a\n": false} {
		if validHost(host) != ok {
			t.Errorf("the host %q: %v", host, !ok)
		}
	}
	for _, n := range []uint32{0, 1 << 16} {
		if validPort(n) {
			t.Errorf("port %d", n)
		}
	}
	term, ok := parsePTY(ssh.Marshal(ptyRequest{Term: "xterm", Cols: 1 << 20, Rows: 24, Modes: "\x35\x00\x00\x00\x01\x00rest"}))
	if !ok || term.Cols != 1<<16-1 || term.Rows != 24 || len(term.Modes) != 1 || term.Modes[0x35] != 1 {
		t.Errorf("%+v %v", term, ok)
	}
	if _, ok := parsePTY(ssh.Marshal(ptyRequest{Term: "x", Modes: "\x35\x00"})); ok {
		t.Error("a mode without its value was accepted")
	}
	for in, want := range map[string]string{"demo": "demo", "my demo": "'my demo'", "it's": `'it'\''s'`, "-x": "'-x'", "": "''"} {
		if got := quoted(in); got != want {
			t.Errorf("quoted(%q) = %s", in, got)
		}
	}
}

func TestTunnelUse(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	var u tunnelUse
	for range 24 { // keep-alives of two hours
		now = now.Add(5 * time.Minute)
		if u.used(1000, now) {
			t.Fatal("keep-alives count as use")
		}
	}
	for i := range 10 {
		now = now.Add(time.Second)
		if u.used(2000, now) != (i >= 3) {
			t.Errorf("message %d", i)
		}
	}
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	a := newAdmission(Settings{MaxConnections: 2, MaxPerUser: 1}, BudgetOf(8<<30), func() time.Time { return now })
	from := networkOf(mustAddr(t, "2001:db8::1"))
	if other := networkOf(mustAddr(t, "2001:db8::2")); other != from {
		t.Errorf("%v and %v", from, other)
	}
	// Refused keys, and their end.
	for range failureBurst {
		s := a.begin(from, func() {})
		if s == nil {
			t.Fatal("refused before the limit")
		}
		a.end(s, 1)
	}
	if a.begin(from, func() {}) != nil {
		t.Error("an address with too many refused keys was admitted")
	}
	if s := a.begin(networkOf(mustAddr(t, "192.0.2.1")), func() {}); s == nil {
		t.Error("another address was refused")
	} else {
		a.end(s, 0)
	}
	now = now.Add(2 * failureInterval)
	if s := a.begin(from, func() {}); s == nil {
		t.Error("the failures did not pass")
	} else {
		a.end(s, 0)
	}
	// A flood replaces its oldest connection.
	closed := make(chan struct{})
	first := a.begin(networkOf(mustAddr(t, "192.0.2.9")), func() { close(closed) })
	for range maxStarting {
		if a.begin(networkOf(mustAddr(t, "")), func() {}) == nil {
			t.Fatal("refused")
		}
	}
	<-closed
	a.end(first, 1)
	if a.enter("ann") != nil || a.enter("ann") != errTooMany || a.enter("bob") != nil || a.enter("carl") != errFull {
		t.Error("the limits of users")
	}
	a.leave("ann")
	if a.enter("carl") != nil {
		t.Error("a connection that ended still counts")
	}
}

func mustAddr(t *testing.T, s string) netip.Addr {
	t.Helper()
	if s == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
