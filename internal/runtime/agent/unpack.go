package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// PathUnpack is where the agent takes a file or folder of a backup: the query has to (its path below the
// home) and replace (true: what is there makes place). The server sends the tar for
// archive.UnpackPart as FrameStdin and then FrameStdinEnd; the agent answers with an Unpacked as
// FrameEvent. Without FrameStdinEnd nothing is put in place.
const PathUnpack = "/v1/unpack"

// UnpackPause is how long either side waits for the other to go on.
const UnpackPause = time.Minute

// Unpacked is how an unpacking ended.
type Unpacked struct {
	// Status is 0, or as in an answer: 409 if the target exists, 422 if the path cannot be used,
	// 507 if the disk is full.
	Status  int    `json:"status,omitempty"`
	Message string `json:"message,omitempty"`
	// Kept is the name, beside the target, of what was there before; empty: nothing.
	Kept []byte `json:"kept,omitempty"`
}

// Unpack puts a file or folder at a path below the home: tar writes the tar for archive.UnpackPart.
// What is there is an error unless replace is true, and is kept under the returned name then. A
// RefusedError has the agent's reason; its Status is http.StatusNotFound if the agent is of an earlier
// version. An error of tar is returned unchanged, and nothing is put in place then.
func (c *Client) Unpack(ctx context.Context, to string, replace bool, tar func(io.Writer) error) (kept string, err error) {
	conn, err := c.converse(ctx, PathUnpack, url.Values{"to": {to}, "replace": {strconv.FormatBool(replace)}}, nil)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	pause := cmp.Or(c.AnswerTimeout, UnpackPause)
	out := &unpackWriter{conn: conn, pause: pause}
	out.frames = NewFrameWriter(out)
	var result Unpacked
	var failed error
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if failed = unpackResult(conn, &result); failed != nil {
			conn.Close() // ends what is written
			return
		}
		out.stop()
	}()
	if err = tar(out.frames.Stream(FrameStdin)); err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = out.frames.Write(FrameStdinEnd, nil)
	}
	if err != nil && out.failure() == nil {
		conn.Close()
		<-answered
		return "", err
	}
	_ = conn.SetReadDeadline(time.Now().Add(pause)) // fails only if the connection has ended
	<-answered
	switch {
	case failed != nil:
		return "", unreachable(ctx, failed)
	case result.Status != 0:
		message := cmp.Or(printable(result.Message, maxReason), "the workspace's agent gave no reason")
		return "", &RefusedError{Status: result.Status, Message: message}
	case err != nil:
		return "", unreachable(ctx, errors.New("the agent took a tar that was not complete"))
	}
	kept = string(result.Kept)
	if len(kept) > 255 || strings.ContainsAny(kept, "/\x00") {
		return "", fmt.Errorf("%w: it reported a name that no file has", ErrUnreachable)
	}
	return kept, nil
}

// unpackResult reads the agent's answer.
func unpackResult(conn io.Reader, to *Unpacked) error {
	f, err := NewFrameReader(conn).Read()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && f.Kind != FrameEvent {
		err = errors.New("the agent sent no result")
	}
	if err == nil {
		err = json.Unmarshal(f.Payload, to)
	}
	if err == nil && to.Status != 0 && (to.Status < http.StatusBadRequest || to.Status == http.StatusNotFound || to.Status > 599) {
		to.Status = http.StatusUnprocessableEntity
	}
	return err
}

// unpackWriter writes to the agent, which has to take each piece within the pause.
type unpackWriter struct {
	frames *FrameWriter
	conn   *Conn
	pause  time.Duration

	mu      sync.Mutex
	err     error
	stopped bool
}

// Write implements io.Writer.
func (w *unpackWriter) Write(p []byte) (int, error) {
	if !w.extend() {
		return 0, w.fail(errors.New("the agent has answered"))
	}
	n, err := w.conn.Write(p)
	if err != nil {
		return n, w.fail(err)
	}
	return n, nil
}

// extend begins the time for the next piece, unless the agent has answered.
func (w *unpackWriter) extend() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.stopped && w.conn.SetWriteDeadline(time.Now().Add(w.pause)) == nil
}

// stop ends writes, also a pending one.
func (w *unpackWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	_ = w.conn.SetWriteDeadline(time.Unix(1, 0))
}

func (w *unpackWriter) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	return err
}

// failure returns the error of a write, as opposed to one of the tar.
func (w *unpackWriter) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
