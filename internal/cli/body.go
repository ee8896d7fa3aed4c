package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// errInterrupted reports an output that ends before its end because the command was interrupted.
var errInterrupted = errors.New("interrupted: the output is incomplete")

// copyBody returns a function that copies a response's body to out and closes it. An output that
// does not reach its end is an error, except one that the user follows until an interrupt.
func copyBody(ctx context.Context, out io.Writer, follow bool) func(io.ReadCloser, error) error {
	return func(body io.ReadCloser, err error) error {
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.Copy(out, body)
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil:
			return fmt.Errorf("the output is incomplete: %w", err)
		case follow:
			return nil
		}
		return errInterrupted
	}
}

// lastEntry passes the lines of an export of the audit log on, and keeps the last complete one.
type lastEntry struct {
	out  io.Writer
	line []byte // the last complete line
	rest []byte // what follows it
}

// Write passes b on.
func (l *lastEntry) Write(b []byte) (int, error) {
	n, err := l.out.Write(b)
	l.rest = append(l.rest, b[:n]...)
	if end := bytes.LastIndexByte(l.rest, '\n'); end >= 0 {
		begin := bytes.LastIndexByte(l.rest[:end], '\n') + 1
		l.line = append(l.line[:0], l.rest[begin:end]...)
		l.rest = append(l.rest[:0], l.rest[end+1:]...)
	}
	return n, err
}

// at is the time of the last complete entry; empty if there is none.
func (l *lastEntry) at() string {
	var e struct {
		At string `json:"at"`
	}
	if json.Unmarshal(l.line, &e) != nil {
		return ""
	}
	return e.At
}
