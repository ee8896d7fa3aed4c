package shortway

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"time"
)

// Repeated answers a GET request whose header fields are, byte for byte, those of the
// request before it on its connection. Only the target may differ, which is valid during the
// call. It returns false if the handler has to serve the request; nothing was sent to the
// client then.
type Repeated func(target []byte, a *Answer) bool

// Repeat lets f answer the following requests of the connection while their header fields
// stay the same. A handler calls it after every check that f does not make, with the writer
// that it was given. A writer around that of Server passes it on by a method Repeat of its
// own, and decorates f by what it does for each request. Without one, and on connections
// that Server does not serve, Repeat has no effect.
func Repeat(w http.ResponseWriter, f Repeated) {
	if repeater, ok := w.(interface{ Repeat(Repeated) }); ok {
		repeater.Repeat(f)
	}
}

// Repeat is called by the function Repeat.
func (w *plainWriter) Repeat(f Repeated) {
	if c := w.conn; !w.head && c.handled != nil {
		_, fields, _ := bytes.Cut(c.handled, []byte("\r\n"))
		c.repeat, c.fields = f, append(c.fields[:0], fields...)
	}
}

// Answer is the answer to a repeated request. One goroutine uses it, apart from End.
type Answer struct {
	conn   *plainConn
	head   []byte  // of the request
	fields []field // of the response, by Field
	status int     // that was sent
	bytes  int64   // of the body that were sent
	writer *plainWriter
	cancel context.CancelFunc
	failed bool // the connection has to be closed
}

type field struct{ name, value string }

// Sent returns the status, or 0, and the bytes of the body that were sent.
func (a *Answer) Sent() (status int, bytes int64) {
	if a.writer != nil {
		return a.writer.status, a.writer.written
	}
	return a.status, a.bytes
}

// Field adds a field to the response's header.
func (a *Answer) Field(name, value string) { a.fields = append(a.fields, field{name, value}) }

// appendFields appends the fields that Field has added, and those of the connection.
func (a *Answer) appendFields(b []byte) []byte {
	for _, f := range a.fields {
		b = append(append(append(append(b, f.name...), ": "...), f.value...), "\r\n"...)
	}
	if a.conn.server.closing.Load() {
		b = append(b, "Connection: close\r\n"...)
	}
	return b
}

// hold makes the end of the client's connection, and End, interrupt reads and writes of up
// as well, until release. It returns false if the client's connection has ended.
func (a *Answer) hold(up net.Conn) bool {
	c := a.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.severed || c.ctx.Err() != nil {
		return false
	}
	c.up = up
	return true
}

// release ends hold. It returns false if up was interrupted.
func (a *Answer) release() bool {
	c := a.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.up != nil
	c.up = nil
	return held
}

// End ends the answer and closes the connection, also while another goroutine waits.
func (a *Answer) End() { a.conn.sever() }

// send writes a part of the response, which begins with the whole head. There is no
// deadline. body is how much of it is the body.
func (a *Answer) send(p []byte, body int) error {
	if !a.conn.setWriteBy(time.Time{}) {
		a.failed = true
		return net.ErrClosed
	}
	a.bytes += int64(body)
	if _, err := a.conn.out.Write(p); err != nil {
		a.failed = true
		return err
	}
	return nil
}

// open returns a writer for a response that send cannot send, and the request as the server
// has read it, without what middleware makes of it. Nothing was sent yet.
func (a *Answer) open() (http.ResponseWriter, *http.Request, error) {
	r, err := a.conn.read(bufio.NewReader(bytes.NewReader(a.head)))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(a.conn.ctx)
	a.cancel, a.writer = cancel, newPlainWriter(a.conn, r)
	a.writer.writeBy = time.Time{}
	for _, f := range a.fields {
		a.writer.header.Set(f.name, f.value)
	}
	return a.writer, r.WithContext(ctx), nil
}

// finish ends the response. It returns false when the connection has to be closed.
func (a *Answer) finish(ok bool) (open bool) {
	open = ok && !a.failed
	if a.writer == nil {
		return open
	}
	if timeout := a.conn.server.HTTP.WriteTimeout; timeout > 0 {
		a.writer.writeBy = time.Now().Add(timeout) // until now the function bounded the writes
	}
	if open {
		open = a.writer.finish()
	} else {
		a.writer.abort()
	}
	a.cancel()
	a.writer.release()
	return open
}

// again serves a request by the function that Repeat was given. It returns false if that
// does not answer it. head stays as it is meanwhile, and target is a part of c.in.
func (c *plainConn) again(head, target []byte) (answered, open bool) {
	begin := len("GET ")
	target = head[begin : begin+len(target)]
	c.mu.Lock()
	c.watching = true
	c.mu.Unlock()
	c.watcher.Reset(watchAfter)
	a := &c.answer
	*a = Answer{conn: c, head: head, fields: a.fields[:0]}
	answered, ok := c.repeatTo(target, a)
	c.unwatch()
	open = a.finish(ok)
	clear(a.fields)
	*a = Answer{fields: a.fields} // keeps nothing else while the connection is idle
	return answered, open
}

// repeatTo is handle for a repeated request.
func (c *plainConn) repeatTo(target []byte, a *Answer) (answered, ok bool) {
	answered = true
	defer c.recovered()
	answered = c.repeat(target, a)
	return answered, true
}

// repeatedTarget reports whether a request has the method and the fields of the one before,
// for which Repeat was called, and returns its target.
func (c *plainConn) repeatedTarget(head []byte) (target []byte, ok bool) {
	if c.repeat == nil {
		return nil, false
	}
	line, fields, _ := bytes.Cut(head, []byte("\r\n"))
	if !bytes.Equal(fields, c.fields) {
		return nil, false
	}
	target, ok = bytes.CutPrefix(line, []byte("GET "))
	if !ok {
		return nil, false
	}
	target, ok = bytes.CutSuffix(target, []byte(" HTTP/1.1"))
	return target, ok && plainTarget(target)
}

// plainTarget reports whether a request may have this target, by plainHead.
func plainTarget(target []byte) bool {
	return len(target) > 0 && target[0] == '/' && printable(target, '!')
}
