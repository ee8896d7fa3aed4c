package inbound

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Strict returns a listener whose HTTP/1 connections refuse requests that are framed
// ambiguously: several Content-Length fields, one next to Transfer-Encoding,
// Transfer-Encoding in HTTP/1.0, folded lines, and lines that do not end with CRLF.
// net/http accepts them. A proxy in front may read them in another way, and then take
// the end of one user's request for the beginning of another's. The server answers 400
// and closes the connection. Chunks that are longer than their size and trailers that are
// no fields end it too.
//
// A connection whose request asks for another protocol is not checked any further, so
// the handler must close it if it does not switch; see CloseAfter.
//
// first, if it is not nil, may serve the first requests of an HTTP/1 connection itself. It
// gets the connection after a handshake of TLS, and returns what continues it, or nil if it
// has ended.
func Strict(l net.Listener, first func(net.Conn) net.Conn) net.Listener {
	s := &strictListener{Listener: l, first: first, accepted: make(chan net.Conn), done: make(chan struct{})}
	go s.run()
	return s
}

// strict returns a connection that is checked, with its TLS or nil.
func strict(c net.Conn, secure *tls.Conn) net.Conn {
	if secure == nil {
		return &strictConn{Conn: c}
	}
	return &strictTLSConn{strictConn{Conn: c}, secure}
}

type strictListener struct {
	net.Listener
	first    func(net.Conn) net.Conn // or nil
	accepted chan net.Conn
	done     chan struct{} // closed when no more connections are accepted
	err      error         // why; set before
}

// handshakeTimeout bounds the TLS handshake, which shows whether the connection is
// HTTP/1.
const handshakeTimeout = 10 * time.Second

// acceptPause is the pause after a temporary failure, such as too few descriptors.
const acceptPause = 50 * time.Millisecond

func (l *strictListener) run() {
	defer close(l.done)
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() && !errors.Is(err, net.ErrClosed) {
				time.Sleep(acceptPause)
				continue
			}
			l.err = err
			return
		}
		go func() {
			secure, ok := c.(*tls.Conn)
			if ok && !negotiatesHTTP1(secure) {
				l.hand(c)
				return
			}
			if l.first != nil {
				if c = l.first(c); c == nil {
					return
				}
			}
			l.hand(strict(c, secure))
		}()
	}
}

// hand passes a connection to Accept.
func (l *strictListener) hand(c net.Conn) {
	select {
	case l.accepted <- c:
	case <-l.done:
		_ = c.Close()
	}
}

// negotiatesHTTP1 completes the handshake, and reports whether the connection is HTTP/1.
// HTTP/2 and failed handshakes only work with the *tls.Conn itself, which keeps the
// result.
func negotiatesHTTP1(c *tls.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout))
	err := c.Handshake()
	_ = c.SetDeadline(time.Time{})
	protocol := c.ConnectionState().NegotiatedProtocol
	return err == nil && (protocol == "" || protocol == "http/1.1")
}

func (l *strictListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.done:
		return nil, l.err
	}
}

// strictConn checks what a client sends.
type strictConn struct {
	net.Conn
	check framing
	err   error // after an ambiguous request
}

var errAmbiguous = errors.New("ambiguous request")

func (c *strictConn) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if passed := c.check.pass(p[:n]); passed < n {
		// The head stays incomplete, so net/http does not act on it.
		c.err = errAmbiguous
		if passed == 0 {
			return 0, c.err
		}
		return passed, nil
	}
	return n, err
}

// NetConn returns the connection below.
func (c *strictConn) NetConn() net.Conn { return c.Conn }

// Direct returns the connection below if this one neither checks what is read nor holds
// any of it.
func (c *strictConn) Direct() (net.Conn, bool) {
	return c.Conn, c.err == nil && c.check.state == unchecked && len(c.check.line) == 0
}

// CloseWrite closes the connection for writing.
func (c *strictConn) CloseWrite() error { return closeWrite(c.Conn) }

// strictTLSConn is a strictConn whose TLS net/http sees.
type strictTLSConn struct {
	strictConn
	secure *tls.Conn
}

// ConnectionState is what net/http puts into Request.TLS.
func (c *strictTLSConn) ConnectionState() tls.ConnectionState { return c.secure.ConnectionState() }

// framing follows the requests of an HTTP/1 connection. The zero value expects a
// request line.
type framing struct {
	state     state
	line      []byte // beginning of an incomplete line
	remaining uint64 // bytes of the body or of the chunk

	// Of the current request:
	http10, upgrade  bool
	lengths, codings int
	length           uint64
	chunked          bool
	trailers         int // bytes of complete trailer lines
}

type state int

const (
	requestLine state = iota
	headerLine
	chunkLine
	chunkEnd // the CRLF after a chunk's data
	trailerLine
	chunkData
	bodyData
	unchecked
)

// maxLine limits a line; net/http limits the whole head.
const maxLine = maxHeaderBytes + 8<<10

// maxTrailers limits the trailers of a body. net/http accepts no more than its buffer
// holds.
const maxTrailers = 4 << 10

// pass returns how many bytes may pass: all, or those before an invalid line.
func (f *framing) pass(b []byte) int {
	for at := 0; at < len(b); {
		switch f.state {
		case unchecked:
			return len(b)
		case bodyData, chunkData:
			n := min(uint64(len(b)-at), f.remaining)
			at += int(n)
			f.remaining -= n
			switch {
			case f.remaining > 0:
			case f.state == bodyData:
				f.state = requestLine
			default:
				f.state = chunkEnd
			}
			continue
		}
		end := bytes.IndexByte(b[at:], '\n')
		if end < 0 {
			f.line = append(f.line, b[at:]...)
			if len(f.line) > maxLine || !validStart(f.state, f.line) || f.state == trailerLine && f.trailers+len(f.line) > maxTrailers {
				return at
			}
			return len(b)
		}
		line := b[at : at+end]
		if len(f.line) > 0 {
			f.line = append(f.line, line...)
			line = f.line
		}
		if !f.next(line) {
			return at
		}
		if f.line = f.line[:0]; cap(f.line) > 4096 {
			f.line = nil // keeps no large line for the connection
		}
		at += end + 1
	}
	return len(b)
}

// validStart reports whether a line may begin this way. It refuses a folded line, and data
// beyond the size of a chunk, before the line is complete.
func validStart(s state, line []byte) bool {
	switch s {
	case headerLine, trailerLine:
		return line[0] != ' ' && line[0] != '\t'
	case chunkEnd:
		return string(line) == "\r"
	}
	return true
}

// next checks a line without its LF, and sets the next state.
func (f *framing) next(line []byte) bool {
	line, crlf := bytes.CutSuffix(line, []byte{'\r'})
	if !crlf || len(line) > maxLine || bytes.IndexByte(line, '\r') >= 0 || bytes.IndexByte(line, 0) >= 0 {
		return false
	}
	if len(line) > 0 && !validStart(f.state, line) {
		return false
	}
	switch f.state {
	case requestLine:
		if len(line) == 0 {
			return true // net/http decides
		}
		*f = framing{state: headerLine, line: f.line, http10: bytes.HasSuffix(line, []byte("HTTP/1.0"))}
		if string(line) == "PRI * HTTP/2.0" {
			f.state = unchecked
		}
	case headerLine:
		if len(line) == 0 {
			return f.endHead()
		}
		return f.header(line)
	case chunkLine:
		return f.chunk(line)
	case chunkEnd: // validStart refuses one that is not empty
		f.state = chunkLine
	case trailerLine:
		return f.trailer(line)
	}
	return true
}

// header notes the fields that frame the request.
func (f *framing) header(line []byte) bool {
	name, value, _ := bytes.Cut(line, []byte{':'})
	switch len(name) { // most names differ in length
	case len("Upgrade"):
		f.upgrade = f.upgrade || bytes.EqualFold(name, []byte("Upgrade"))
	case len("Content-Length"):
		if bytes.EqualFold(name, []byte("Content-Length")) {
			f.lengths++
			var err error
			f.length, err = strconv.ParseUint(string(bytes.Trim(value, " \t")), 10, 63) // no sign, no list
			return err == nil
		}
	case len("Transfer-Encoding"):
		if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
			f.codings++
			f.chunked = bytes.EqualFold(bytes.Trim(value, " \t"), []byte("chunked"))
		}
	}
	return true
}

// endHead ends the head, and refuses the request if it is ambiguous where its body
// ends.
func (f *framing) endHead() bool {
	if f.lengths+f.codings > 1 || f.codings > 0 && f.http10 {
		return false
	}
	switch {
	case f.upgrade || f.codings > 0 && !f.chunked: // net/http refuses another coding
		f.state = unchecked
	case f.chunked:
		f.state = chunkLine
	case f.length > 0:
		f.state, f.remaining = bodyData, f.length
	default:
		f.state = requestLine
	}
	return true
}

// chunk begins a chunk: its size in hexadecimal digits, and extensions without control
// characters.
func (f *framing) chunk(line []byte) bool {
	size, extensions, _ := bytes.Cut(line, []byte{';'})
	n, err := strconv.ParseUint(string(bytes.TrimRight(size, " \t")), 16, 62)
	if err != nil || bytes.ContainsFunc(extensions, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return false
	}
	f.state, f.remaining = chunkData, n
	if n == 0 {
		f.state = trailerLine
	}
	return true
}

// trailer checks a trailer as net/http does, which would otherwise refuse it after this
// check has passed it.
func (f *framing) trailer(line []byte) bool {
	if len(line) == 0 {
		f.state = requestLine
		return true
	}
	f.trailers += len(line) + len("\r\n")
	name, value, found := bytes.Cut(line, []byte{':'})
	return found && f.trailers <= maxTrailers && httpguts.ValidHeaderFieldName(string(name)) && httpguts.ValidHeaderFieldValue(string(value))
}
