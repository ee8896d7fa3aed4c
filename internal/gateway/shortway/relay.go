package shortway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// Relayed is a request to a container whose repetitions are relayed by Answer.Relay.
type Relayed struct {
	Pool    *Pool
	Request *http.Request // as Send has sent it
	// Passes reports whether a response to a target may have a field, whose name is in lower
	// case, and pass as it came.
	Passes func(target, name, value []byte) bool

	fields []byte   // of the request's head; nil: not made yet
	name   [40]byte // of a field of a response
}

// Client is the client of a repeated request.
type Client interface {
	// BeginWrite and EndWrite, which gets the bytes written, enclose every write.
	BeginWrite()
	EndWrite(n int)
	// Handle answers if the response must not pass as it came, or there is none.
	Handle(w http.ResponseWriter, r *http.Request, receive func(early func(code int, h http.Header) error) (*http.Response, error))
}

// largestAnswer is the largest body that passes as it came.
const largestAnswer = 64 << 10

// Relay sends a request that repeats q with this target, and passes the response on as it came
// if its length is known and its fields may pass. It returns false if no connection to the
// container is open; nothing was sent to the client then.
func (a *Answer) Relay(q *Relayed, target []byte, to Client) (answered bool) {
	y, err := q.send(target, a)
	switch {
	case errors.Is(err, errNoConnection) && a.conn.ctx.Err() != nil: // the client has left
		a.failed = true
		return true
	case errors.Is(err, errNoConnection), errors.Is(err, errInvalidRequest):
		a.release()
		return false
	case err != nil:
		a.release()
		a.fail(to, err)
		return true
	}
	ended := false
	defer func() {
		if !ended { // it failed, also by a panic
			y.abandon()
		}
	}()
	head, err := y.head()
	if err != nil {
		a.release()
		a.fail(to, err)
		return true
	}
	r, simple := q.parse(head, target)
	if !simple || r.length > largestAnswer {
		if !a.release() {
			a.failed = true
			return true
		}
		ended = true // by the response
		if !a.handle(to, func(ctx context.Context, early func(int, http.Header) error) (*http.Response, error) {
			return y.response(q.Request.WithContext(ctx), early)
		}) {
			y.abandon()
		}
		return true
	}
	a.status = http.StatusOK
	b := Buffers.Get()
	defer Buffers.Put(b)
	out := a.appendFields(r.append(b[:0], head))
	if !r.dated {
		out = append(append(append(out, "Date: "...), time.Now().UTC().Format(http.TimeFormat)...), "\r\n"...)
	}
	out = append(out, "\r\n"...)
	ready := y.skip(head, r.length)
	write := func(p []byte, body int) error {
		to.BeginWrite()
		err := a.send(p, body)
		to.EndWrite(body)
		return err
	}
	err = write(append(out, ready...), len(ready))
	for left := r.length - len(ready); err == nil && left > 0; {
		var n int
		if n, err = y.read(b[:min(left, len(b))]); n > 0 {
			left -= n
			err = write(b[:n], n)
		}
	}
	if err != nil || !a.release() {
		a.failed = true
		return true
	}
	ended = true
	y.end(len(ready), r.keep)
	return true
}

// handle lets the client handle the request. It returns false if receive cannot be called.
func (a *Answer) handle(to Client, receive func(context.Context, func(int, http.Header) error) (*http.Response, error)) bool {
	w, r, err := a.open()
	if err != nil {
		a.failed = true
		return false
	}
	to.Handle(w, r, func(early func(int, http.Header) error) (*http.Response, error) { return receive(r.Context(), early) })
	return true
}

// fail lets the client handle that there is no response.
func (a *Answer) fail(to Client, err error) {
	a.handle(to, func(context.Context, func(int, http.Header) error) (*http.Response, error) { return nil, err })
}

// send sends the request to the container.
func (q *Relayed) send(target []byte, a *Answer) (reply, error) {
	if q.fields == nil {
		head, err := appendHead(nil, q.Request, false)
		if err != nil {
			return reply{}, err
		}
		_, q.fields, _ = bytes.Cut(head, []byte("\r\n"))
	}
	b := heads.Get().(*[]byte)
	defer heads.Put(b)
	*b = append(append((*b)[:0], "GET "...), target...)
	*b = append(append(*b, " HTTP/1.1\r\n"...), q.fields...)
	return q.Pool.sendHead(*b, a.hold)
}

// simple is the header of a response that passes as it is: its length is known, and none of
// its fields is changed, removed or acted upon, apart from those of the container's connection.
type simple struct {
	length int
	keep   string // Keep-Alive
	dated  bool
	typed  bool    // Content-Type; the handler's writer adds one that is missing
	skip   [4]span // lines that are not passed on
	skips  int
}

type span struct{ from, to int }

// parse parses the head of a response to a target. It returns false for one that is not simple.
func (q *Relayed) parse(head, target []byte) (r simple, ok bool) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if !bytes.Equal(line, []byte("HTTP/1.1 200 OK")) {
		return r, false
	}
	r.length = -1
	at := len(line) + 2
	for len(rest) > 2 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, found := bytes.Cut(line, []byte{':'})
		if !found || len(name) > len(q.name) || !plainName(name) || !printable(value, ' ') {
			return r, false
		}
		for i, c := range name {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			q.name[i] = c
		}
		value = bytes.Trim(value, " ")
		switch name = q.name[:len(name)]; string(name) {
		case "content-length":
			n, err := strconv.ParseUint(string(value), 10, 31)
			if err != nil || r.length >= 0 {
				return r, false
			}
			r.length = int(n)
		case "connection":
			if !bytes.EqualFold(value, []byte("keep-alive")) || !r.skipLine(at, line) {
				return r, false
			}
		case "keep-alive":
			if r.keep != "" || !r.skipLine(at, line) {
				return r, false
			}
			r.keep = string(value)
		case "transfer-encoding", "trailer", "upgrade":
			return r, false
		default:
			if !q.Passes(target, name, value) {
				return r, false
			}
			r.dated = r.dated || string(name) == "date"
			r.typed = r.typed || string(name) == "content-type"
		}
		at += len(line) + 2
	}
	return r, r.length >= 0 && r.typed
}

func (r *simple) skipLine(at int, line []byte) bool {
	if r.skips == len(r.skip) {
		return false
	}
	r.skip[r.skips] = span{at, at + len(line) + 2}
	r.skips++
	return true
}

// append appends the head without the empty line and the fields of the connection.
func (r *simple) append(b, head []byte) []byte {
	from := 0
	for _, s := range r.skip[:r.skips] {
		b = append(b, head[from:s.from]...)
		from = s.to
	}
	return append(b, head[from:len(head)-2]...)
}
