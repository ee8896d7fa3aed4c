package sshgate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// The cipher is the first of the client's list that the server offers as well. OpenSSH
// before 10.0 prefers AES-CTR with a MAC to AES-GCM, which is faster, and all its versions
// prefer ChaCha20, which is several times as slow in Go. So the server reads the client's offer
// before it makes its own, and offers AES-GCM alone to a client that has it.
var (
	fastCiphers = []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM}
	allCiphers  = append(slices.Clone(fastCiphers), ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR)
)

// offerWait is how long the server waits for the client's offer. It is lost time for a
// distant client, and for one that waits for the server's offer. The cipher does not matter
// to a distant client: the round trips limit what it transfers.
const offerWait = 30 * time.Millisecond

// ciphersFor returns what to offer to a client that offers these.
func ciphersFor(client []string) []string {
	if slices.ContainsFunc(client, func(c string) bool { return slices.Contains(fastCiphers, c) }) {
		return fastCiphers
	}
	return allCiphers
}

// greetedConn is a connection on which the server has sent its version, and has read what
// the client sends first. The library's own version is not sent again.
type greetedConn struct {
	net.Conn
	greeting []byte // until the library has sent it

	mu    sync.Mutex
	more  sync.Cond     // seen or ended has changed
	seen  []byte        // what the library has not read yet
	ended bool          // the rest is read from Conn
	known chan struct{} // closed with ended
	offer []string      // the client's ciphers; nil: not known
}

// greet sends the server's version and waits for the client's offer. It returns the
// connection, whose Close its caller must call, and the ciphers to offer.
func greet(conn net.Conn, wait time.Duration) (*greetedConn, []string, error) {
	c := &greetedConn{Conn: conn, greeting: []byte(serverVersion + "\r\n"), known: make(chan struct{})}
	c.more.L = &c.mu
	if _, err := conn.Write(c.greeting); err != nil {
		return nil, nil, err
	}
	go c.look()
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-c.known:
	case <-late.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, ciphersFor(c.offer), nil
}

// look reads until the client's offer is complete. It ends with the connection.
func (c *greetedConn) look() {
	var all []byte
	buf := make([]byte, 4<<10)
	for {
		n, err := c.Conn.Read(buf)
		all = append(all, buf[:n]...)
		offer, perr := offerOf(all)
		c.mu.Lock()
		c.seen = append(c.seen, buf[:n]...)
		c.offer = offer
		c.ended = err != nil || !errors.Is(perr, errShort)
		ended := c.ended
		c.more.Broadcast()
		c.mu.Unlock()
		if ended {
			close(c.known)
			return
		}
	}
}

func (c *greetedConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for len(c.seen) == 0 && !c.ended {
		c.more.Wait()
	}
	n := copy(p, c.seen)
	if c.seen = c.seen[n:]; len(c.seen) == 0 {
		c.seen = nil
	}
	c.mu.Unlock()
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return c.Conn.Read(p)
}

// Write is not called concurrently.
func (c *greetedConn) Write(p []byte) (int, error) {
	if c.greeting != nil {
		same := bytes.Equal(p, c.greeting)
		if c.greeting = nil; !same {
			return 0, errors.New("the SSH library did not send the version first")
		}
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// keyExchange is SSH_MSG_KEXINIT, by RFC 4253, section 7.1.
type keyExchange struct {
	Cookie                   [16]byte `sshtype:"20"`
	KeyExchanges, HostKeys   []string
	CiphersIn, CiphersOut    []string
	MACsIn, MACsOut          []string
	CompressionIn            []string
	CompressionOut           []string
	LanguagesIn, LanguageOut []string
	Follows                  bool
	Reserved                 uint32
}

var (
	errShort   = errors.New("the client's offer is incomplete")
	errStrange = errors.New("the client's first packet is not its offer")
)

// Limits of what a client sends first, by RFC 4253.
const (
	maxVersion = 255
	maxOffer   = 35000
)

// offerOf returns the ciphers of which a client offers to use any in both directions. b
// begins with the client's version and its first packet. The error is errShort if more of
// these is needed.
func offerOf(b []byte) ([]string, error) {
	line, packet, complete := bytes.Cut(b, []byte("\n"))
	switch {
	case len(line) > maxVersion || complete && !bytes.HasPrefix(line, []byte("SSH-")):
		return nil, errStrange
	case !complete || len(packet) < 5:
		return nil, errShort
	}
	size, padding := binary.BigEndian.Uint32(packet), uint32(packet[4])
	if size > maxOffer || size < padding+2 {
		return nil, errStrange
	}
	if uint32(len(packet)-4) < size {
		return nil, errShort
	}
	var offer keyExchange
	if ssh.Unmarshal(packet[5:4+size-padding], &offer) != nil {
		return nil, errStrange
	}
	return slices.DeleteFunc(offer.CiphersIn, func(c string) bool { return !slices.Contains(offer.CiphersOut, c) }), nil
}
