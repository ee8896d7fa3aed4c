package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"codehub/internal/gateway/shortway"
	"codehub/internal/workspace/lifecycle"
)

// repeated answers the requests of a connection to the host of a workspace that have the
// header fields of an earlier one, which was relayed by relayPlain; see docs/adr/0016. What
// depends on the fields alone is as for that request: the host, the origin check, what is
// sent to the container. The session, the route, the owner, the limits and the target are
// checked for every request. Only a session that is in the cache is accepted.
type repeated struct {
	proxy   *Proxy
	visit   visit         // without path
	request *http.Request // of the client
	out     *http.Request // to the container
	to      *upstream
	head    []byte // to the container, without a target; nil: not made yet
}

// letRepeat lets the requests that follow an exchange on the client's connection repeat it.
func (x *exchange) letRepeat(w *visitorWriter, in, out *http.Request) {
	v, c := x.visit, x.connection
	owner := v.host.ID != "" && v.host.Port == 0 && !v.guest && v.payer == "" && !v.polls
	if !owner || x.replaced || x.use != nil || v.navigation || x.hints > 0 || in.Method != http.MethodGet ||
		v.path == "/" || !simpleTarget([]byte(v.rawPath)) ||
		!onlyID(w.Header()) {
		return
	}
	v.path, v.rawPath = "", ""
	q := &repeated{proxy: x.proxy, visit: v, request: in, out: out, to: c.upstream}
	shortway.Repeat(w.ResponseWriter, q.answer) // answer does what w does
}

// onlyID reports whether a header has no field but that which httpapi.Outer adds again.
func onlyID(h http.Header) bool {
	_, named := h["X-Request-Id"]
	return len(h) == 0 || len(h) == 1 && named
}

// visitOf returns the visit to a target, unless the rules treat it in a way of its own: the
// IDE's page, which is "/", the paths that codehub serves itself, and those that the IDE
// forwards to a reserved port.
func (q *repeated) visitOf(target []byte) (v visit, ok bool) {
	if !simpleTarget(target) {
		return visit{}, false
	}
	path, _, _ := bytes.Cut(target, []byte{'?'})
	v = q.visit
	v.path = string(path)
	v.rawPath = v.path // nothing in it is escaped
	return v, v.path != "/" && !isOwnPath(v.path) && !v.forwardsToReserved()
}

// simpleTarget reports whether a target is sent to the container as it is: nothing in it is
// escaped or normalized, or has no place in a target.
func simpleTarget(target []byte) bool {
	path, query, _ := bytes.Cut(target, []byte{'?'})
	for i, c := range path {
		switch {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-':
		case c == '_':
		case c == '.' || c == '/':
			if i > 0 && path[i-1] == '/' {
				return false
			}
		default:
			return false
		}
	}
	return len(path) > 0 && path[0] == '/' && bytes.IndexByte(query, '#') < 0
}

// largestAnswer is the largest body that answer relays itself.
const largestAnswer = 64 << 10

func (q *repeated) answer(target []byte, a *shortway.Answer) bool {
	p := q.proxy
	v, ok := q.visitOf(target)
	if !ok {
		return false
	}
	caller, err := p.visitors.AuthenticateWorkspace(q.request, v.host)
	if err != nil || caller != v.caller {
		return false
	}
	route := p.routes.recent(v.id, p.routes.maxAge)
	if route == nil || route.upstream != q.to || !route.enters(caller) || lifecycle.OpeningOf(route.workspace) != lifecycle.OpenNow {
		return false
	}
	c := &connection{id: q.to.id, caller: caller, upstream: q.to, cancel: a.End}
	if p.open.add(c) != nil {
		return false // the handler says why
	}
	defer p.open.remove(c)
	if !caller.Uses(route.workspace.OwnerID, v.id) && !p.stillAdmitted(q.request.Context(), c) {
		return false // the share has ended since the lookup
	}
	reply, err := q.sendTo(target, a.Hold)
	switch {
	case errors.Is(err, shortway.ErrNoConnection) && a.Ended():
		a.Fail()
		return true
	case errors.Is(err, shortway.ErrNoConnection), errors.Is(err, errNoHead):
		a.Release()
		return false
	case err != nil:
		q.fail(a, c, v, err)
		return true
	}
	ended := false
	defer func() {
		if !ended { // a panic
			reply.Abandon()
		}
	}()
	answered, err := reply.Head()
	if err != nil {
		ended = true
		reply.Abandon()
		q.fail(a, c, v, err)
		return true
	}
	r, simple := parseSimple(answered)
	if !simple || r.length > largestAnswer || r.script && inRoot(v.rawPath) {
		ended = true
		q.slow(a, c, v, reply)
		return true
	}
	b := shortway.Buffers.Get()
	defer shortway.Buffers.Put(b)
	a.Status = r.status
	out := a.AppendFields(r.append(b[:0], answered))
	if !r.dated {
		out = append(append(append(out, "Date: "...), time.Now().UTC().Format(http.TimeFormat)...), "\r\n"...)
	}
	out = append(out, "\r\n"...)
	ready := reply.Skip(answered, r.length)
	err = q.send(a, c, append(out, ready...), len(ready))
	for left := r.length - len(ready); err == nil && left > 0; {
		var n int
		if n, err = reply.Read(b[:min(left, len(b))]); n > 0 {
			left -= n
			err = q.send(a, c, b[:n], n)
		}
	}
	ended = true
	if err != nil || !a.Release() {
		reply.Abandon()
		a.Fail()
		return true
	}
	reply.End(len(ready), r.keep)
	return true
}

// send writes to the client.
func (q *repeated) send(a *shortway.Answer, c *connection, b []byte, body int) error {
	c.beginWrite()
	err := a.Send(b, body)
	c.endWrite()
	c.moved(body)
	return err
}

var errNoHead = errors.New("the request cannot be repeated")

// requests are buffers for the heads of requests to containers.
var requests = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// sendTo sends the request to the container.
func (q *repeated) sendTo(target []byte, hold func(net.Conn) bool) (shortway.Reply, error) {
	if q.head == nil {
		fields, err := shortway.Fields(q.out)
		if err != nil {
			return shortway.Reply{}, errNoHead
		}
		q.head = fields
	}
	b := requests.Get().(*[]byte)
	defer requests.Put(b)
	*b = append(append((*b)[:0], "GET "...), target...)
	*b = append(append(*b, " HTTP/1.1\r\n"...), q.head...)
	return q.to.plain.SendHead(*b, hold)
}

// fail answers when the container does not respond.
func (q *repeated) fail(a *shortway.Answer, c *connection, v visit, err error) {
	a.Release()
	w, r, failed := a.Writer()
	if failed != nil || c.wasCut() {
		a.Fail()
		return
	}
	(&exchange{proxy: q.proxy, visit: v, connection: c}).upstreamError(w, r, err)
}

// slow relays a response that the rules change, or that is large.
func (q *repeated) slow(a *shortway.Answer, c *connection, v visit, reply shortway.Reply) {
	if !a.Release() {
		reply.Abandon()
		a.Fail()
		return
	}
	w, r, err := a.Writer()
	if err != nil {
		reply.Abandon()
		a.Fail()
		return
	}
	x := &exchange{proxy: q.proxy, visit: v, connection: c}
	out := q.out.WithContext(r.Context())
	vw := &visitorWriter{ResponseWriter: w, open: q.proxy.open, connection: c}
	res, err := reply.Response(out, x.forwardHints(vw))
	if err == nil {
		if err = valid(res); err != nil {
			_ = res.Body.Close() // it is abandoned
		}
	}
	if err != nil {
		x.upstreamError(vw, r, err)
		return
	}
	x.pass(vw, r, res)
	if c.wasCut() {
		panic(http.ErrAbortHandler) // the client must not take a truncated response for a complete one
	}
}

// simple is the header of a response that passes as it is: its length is known, and none of
// its fields is changed, removed or acted upon, apart from those of the container's connection.
type simple struct {
	status int
	length int
	keep   string // Keep-Alive
	dated  bool
	typed  bool    // Content-Type; the handler's writer adds one that is missing
	script bool    // it may be a script's
	skip   [4]span // lines that are not passed on
	skips  int
}

type span struct{ from, to int }

// meaning is what a field of a response means to the proxy.
type meaning int

const (
	passes     meaning = iota
	needsRules         // the rules change it, or act upon it
	lengthField
	dateField
	typeField
	connectionField
	keepAliveField
)

// meanings are the fields, by their names in lower case, that are not passed on as they are.
var meanings = func() map[string]meaning {
	m := map[string]meaning{}
	for name := range wholeOrigin {
		m[strings.ToLower(name)] = needsRules
	}
	for _, name := range append([]string{"Set-Cookie", "Location", "Service-Worker-Allowed", "X-Request-Id", "Pragma"}, hopByHop...) {
		m[strings.ToLower(name)] = needsRules
	}
	m["content-length"], m["date"], m["content-type"], m["connection"], m["keep-alive"] = lengthField, dateField, typeField, connectionField, keepAliveField
	return m
}()

// parseSimple parses the head of a response. It returns false for one that is not simple.
func parseSimple(head []byte) (r simple, ok bool) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if !bytes.Equal(line, []byte("HTTP/1.1 200 OK")) {
		return r, false
	}
	r.status, r.length = http.StatusOK, -1
	at := len(line) + 2
	for len(rest) > 2 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, found := bytes.Cut(line, []byte{':'})
		var small [40]byte
		if !found || len(name) == 0 || len(name) > len(small) || !simpleField(small[:], name, value) {
			return r, false
		}
		value = bytes.Trim(value, " ")
		switch meanings[string(small[:len(name)])] {
		case passes:
			if directsProxy(string(small[:len(name)])) {
				return r, false
			}
		case needsRules:
			return r, false
		case dateField:
			r.dated = true
		case typeField:
			r.typed = true
			r.script = r.script || isScript(string(value))
		case lengthField:
			n, err := strconv.ParseUint(string(value), 10, 31)
			if err != nil || r.length >= 0 {
				return r, false
			}
			r.length = int(n)
		case connectionField:
			if !bytes.EqualFold(value, []byte("keep-alive")) || !r.skipLine(at, line) {
				return r, false
			}
		case keepAliveField:
			if r.keep != "" || !r.skipLine(at, line) {
				return r, false
			}
			r.keep = string(value)
		}
		at += len(line) + 2
	}
	return r, r.length >= 0 && r.typed
}

// simpleField reports whether a field has letters, digits and hyphens in its name, and
// printable ASCII in its value. It puts the name in lower case into small.
func simpleField(small, name, value []byte) bool {
	for i, c := range name {
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-':
		default:
			return false
		}
		small[i] = c
	}
	for _, c := range value {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
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

// valid reports what makes a response one that must not be passed on.
func valid(res *http.Response) error {
	switch {
	case res.StatusCode < 100 || res.StatusCode > 599:
		return fmt.Errorf("%w: status %03d", errInvalidResponse, res.StatusCode)
	case len(res.Header) > maxResponseFields:
		return fmt.Errorf("%w: %d header fields", errInvalidResponse, len(res.Header))
	}
	return nil
}
