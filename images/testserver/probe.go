package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// probe tries a TCP connection to ?addr=host:port from where the server runs and
// says what came of it: "ok", "refused", "timeout", "unreachable" or "error".
// ?timeout= is a Go duration (2s).
func (s *server) probe(w http.ResponseWriter, r *http.Request) {
	timeout, err := durationParam(r, "timeout", 2*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	addr := r.URL.Query().Get("addr")
	if _, _, err := net.SplitHostPort(addr); err != nil {
		http.Error(w, "addr: "+err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	begin := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	answer := map[string]any{"addr": addr, "result": dialResult(err), "ms": time.Since(begin).Milliseconds()}
	if err != nil {
		answer["error"] = err.Error()
	} else {
		conn.Close()
	}
	writeJSON(w, answer)
}

func dialResult(err error) string {
	var timeout net.Error
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "error"
}
