package main

import (
	"io"
	"net/http"
	"strconv"
)

// bytesBuffer is the size of one read or write of sendBytes and takeBytes.
const bytesBuffer = 256 << 10

// sendBytes sends ?n= bytes from memory, with a Content-Length.
func (s *server) sendBytes(w http.ResponseWriter, r *http.Request) {
	n, err := intParam(r, "n", 0)
	if err != nil || n < 0 {
		http.Error(w, "n must be a number of bytes", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(n))
	block := make([]byte, min(n, bytesBuffer))
	for n > 0 {
		sent, err := w.Write(block[:min(n, len(block))])
		if err != nil {
			return
		}
		n -= sent
	}
}

// takeBytes discards the body and reports how many bytes it had.
func (s *server) takeBytes(w http.ResponseWriter, r *http.Request) {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r.Body}, make([]byte, bytesBuffer))
	if err != nil {
		http.Error(w, "read body: "+err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(w, map[string]any{"bytes": n})
}
