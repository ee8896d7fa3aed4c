package shortway

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// plainWriter writes the response to a plain request, framed as net/http does: with the
// handler's Content-Length, or else with one of a body that is complete when it is first
// written to the connection, or else in chunks.
type plainWriter struct {
	conn   *plainConn
	head   bool // the request is HEAD
	begun  time.Time
	header http.Header

	status  int         // 0: the header is not written
	sent    http.Header // the header as it was when WriteHeader was called
	framed  bool        // the header is in out
	chunked bool
	length  int64 // by Content-Length; -1: none
	written int64 // of the body
	ends    bool  // the connection ends with the response
	writeBy time.Time

	out  *[]byte       // not written to the connection yet
	body []byte        // of a response that is not framed yet
	kept [2 << 10]byte // holds body: a short one whose length is not known yet
	err  error         // of the connection
}

var plainWriters = sync.Pool{New: func() any {
	out := make([]byte, 0, plainOut)
	return &plainWriter{header: http.Header{}, out: &out}
}}

// plainOut is how much is collected before it is written to the connection.
const plainOut = 8 << 10

func newPlainWriter(c *plainConn, r *http.Request) *plainWriter {
	w := plainWriters.Get().(*plainWriter)
	w.conn, w.head, w.begun, w.length = c, r.Method == http.MethodHead, time.Now(), -1
	if timeout := c.server.HTTP.WriteTimeout; timeout > 0 {
		w.writeBy = w.begun.Add(timeout)
	}
	return w
}

// release makes the writer available for another request. The handler has returned.
func (w *plainWriter) release() {
	header, out := w.header, w.out
	clear(header)
	*out = (*out)[:0]
	if cap(*out) > 2*plainOut {
		return // one large header is not kept
	}
	*w = plainWriter{header: header, out: out}
	plainWriters.Put(w)
}

func (w *plainWriter) Header() http.Header { return w.header }

func (w *plainWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if status < 200 {
		w.inform(status)
		return
	}
	w.status = status
	w.sent = w.header
	if v, ok := w.header["Content-Length"]; ok {
		n, err := int64(-1), error(nil)
		if len(v) == 1 {
			n, err = strconv.ParseInt(v[0], 10, 64)
		}
		if err != nil || n < 0 {
			delete(w.header, "Content-Length")
			w.sent = w.header.Clone()
			return
		}
		w.length = n
		if _, ok := w.header["Content-Type"]; ok || !allowsBody(status) {
			w.frame(nil, false)
			return
		}
	}
	w.sent = w.header.Clone()
}

// inform writes an informational response.
func (w *plainWriter) inform(status int) {
	w.statusLine(status)
	_ = w.header.WriteSubset(appender{w.out}, map[string]bool{"Content-Length": true, "Transfer-Encoding": true})
	*w.out = append(*w.out, "\r\n"...)
	w.flush()
}

// appender is an io.Writer that appends.
type appender struct{ to *[]byte }

func (a appender) Write(p []byte) (int, error) {
	*a.to = append(*a.to, p...)
	return len(p), nil
}

func (a appender) WriteString(s string) (int, error) {
	*a.to = append(*a.to, s...)
	return len(s), nil
}

func (w *plainWriter) statusLine(status int) {
	*w.out = append(*w.out, "HTTP/1.1 "...)
	*w.out = strconv.AppendInt(*w.out, int64(status), 10)
	*w.out = append(*w.out, ' ')
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	*w.out = append(*w.out, text...)
	*w.out = append(*w.out, "\r\n"...)
}

// allowsBody reports whether a response with this status has a body.
func allowsBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// Fields that responses with these statuses do not have, as in net/http.
var (
	notIn304 = map[string]bool{"Content-Type": true, "Content-Length": true, "Transfer-Encoding": true}
	notIn204 = map[string]bool{"Content-Length": true, "Transfer-Encoding": true}
)

// frame puts the header into out. first is the beginning of the body, whole says that it
// is all of it.
func (w *plainWriter) frame(first []byte, whole bool) {
	w.framed = true
	h := w.sent
	trailers := trailerNames(h)
	exclude := trailers
	switch {
	case w.status == http.StatusNotModified:
		exclude = notIn304
	case w.status == http.StatusNoContent:
		exclude = notIn204
	case len(h["Transfer-Encoding"]) > 0:
		exclude = maps.Clone(trailers)
		if exclude == nil {
			exclude = map[string]bool{}
		}
		exclude["Transfer-Encoding"] = true
	}
	if v := h["Connection"]; len(v) > 0 && strings.EqualFold(v[0], "close") {
		w.ends = true
	}
	w.statusLine(w.status)
	_ = h.WriteSubset(appender{w.out}, exclude)
	field := func(name, value string) {
		*w.out = append(append(append(append(*w.out, name...), ": "...), value...), "\r\n"...)
	}
	if _, ok := h["Date"]; !ok {
		field("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	if allowsBody(w.status) {
		coded := len(h["Transfer-Encoding"]) > 0
		if _, ok := h["Content-Type"]; !ok && !coded && len(first) > 0 && h.Get("Content-Encoding") == "" {
			field("Content-Type", http.DetectContentType(first))
		}
		switch {
		case w.length >= 0:
		case whole && !coded && len(h["Trailer"]) == 0 && len(trailers) == 0 && !hasPrefixed(w.header) && (!w.head || len(first) > 0):
			w.length = int64(len(first))
			field("Content-Length", strconv.Itoa(len(first)))
		case !w.head:
			w.chunked = true
			field("Transfer-Encoding", "chunked")
		}
	}
	if !w.ends && w.conn.server.closing.Load() {
		w.ends = true
		field("Connection", "close")
	}
	*w.out = append(*w.out, "\r\n"...)
}

// trailerNames returns the names that the header announces as trailers, and those with
// http.TrailerPrefix; nil if there are none.
func trailerNames(h http.Header) map[string]bool {
	var names map[string]bool
	add := func(name string) {
		if names == nil {
			names = map[string]bool{}
		}
		names[name] = true
	}
	for _, line := range h["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); httpguts.ValidTrailerHeader(name) {
				add(name)
			}
		}
	}
	for name := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			add(name)
		}
	}
	return names
}

func hasPrefixed(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

func (w *plainWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case len(p) == 0:
		return 0, nil
	case !allowsBody(w.status):
		return 0, http.ErrBodyNotAllowed
	}
	if w.written += int64(len(p)); w.length >= 0 && w.written > w.length {
		return 0, http.ErrContentLength
	}
	if !w.framed && len(w.body)+len(p) <= len(w.kept) {
		w.body = append(w.kept[:len(w.body)], p...)
		return len(p), nil
	}
	w.frameBody(p)
	w.emit(p)
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// frameBody frames the response before the handler has ended.
func (w *plainWriter) frameBody(next []byte) {
	if w.framed {
		return
	}
	first := w.body
	if len(first) == 0 {
		first = next
	}
	w.frame(first, false)
	if len(w.body) > 0 {
		w.emit(w.body)
	}
}

// emit writes a part of the body.
func (w *plainWriter) emit(p []byte) {
	if w.head {
		return // the length and the type of a body that is not sent
	}
	if w.chunked {
		*w.out = append(strconv.AppendInt(*w.out, int64(len(p)), 16), "\r\n"...)
		defer func() { *w.out = append(*w.out, "\r\n"...) }()
	}
	if len(*w.out)+len(p) <= plainOut {
		*w.out = append(*w.out, p...)
		return
	}
	w.writeOut(p)
}

// flush writes what is collected.
func (w *plainWriter) flush() { w.writeOut(nil) }

// writeOut writes what is collected, and p.
func (w *plainWriter) writeOut(p []byte) {
	if w.err == nil && len(*w.out)+len(p) > 0 {
		if !w.conn.setWriteBy(w.writeBy) {
			w.err = net.ErrClosed
		} else if len(p) == 0 {
			_, w.err = w.conn.out.Write(*w.out)
		} else {
			parts := net.Buffers{*w.out, p}
			_, w.err = parts.WriteTo(w.conn.out)
		}
	}
	*w.out = (*w.out)[:0]
}

// FlushError is called by http.ResponseController.
func (w *plainWriter) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.frameBody(nil)
	w.flush()
	return w.err
}

// Flush is for those who look for http.Flusher.
func (w *plainWriter) Flush() { _ = w.FlushError() }

// SetWriteDeadline is called by http.ResponseController. A time in the past ends a write
// of another goroutine.
func (w *plainWriter) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && !t.After(time.Now()) {
		w.conn.sever()
		return nil
	}
	w.writeBy = t
	return nil
}

// SetReadDeadline is called by http.ResponseController. There is no body to read.
func (w *plainWriter) SetReadDeadline(time.Time) error { return nil }

// abort sends what was framed of a response whose handler has panicked.
func (w *plainWriter) abort() {
	if w.framed {
		w.flush()
	}
}

// finish ends the response. It returns false when the connection has to be closed.
func (w *plainWriter) finish() bool {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.framed {
		w.frame(w.body, true)
		if len(w.body) > 0 {
			w.emit(w.body)
		}
	}
	if w.chunked {
		*w.out = append(*w.out, "0\r\n"...)
		w.trailers()
		*w.out = append(*w.out, "\r\n"...)
	}
	w.flush()
	whole := w.head || !allowsBody(w.status) || w.chunked || w.written == w.length
	return w.err == nil && whole && !w.ends
}

// trailers writes the trailers that the header has announced, and those with
// http.TrailerPrefix.
func (w *plainWriter) trailers() {
	names := trailerNames(w.sent)
	final := http.Header{}
	for name, values := range w.header {
		if after, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			final[after] = values
		} else if names[name] {
			final[name] = values
		}
	}
	_ = final.Write(appender{w.out})
}
