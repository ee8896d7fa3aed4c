package vscode

import (
	"net/http"
	"strings"
)

// headerExtensions is the response header with the negotiated extensions.
const headerExtensions = "Sec-Websocket-Extensions"

const (
	deflateExtension = "permessage-deflate"
	clientAlone      = "client_no_context_takeover"
	serverAlone      = "server_no_context_takeover"
)

// CompressAlone makes the client of a WebSocket compress each message independently
// if compression was negotiated, so that decoding needs no window per connection. A
// server may request that unasked, and decoders need no support for it (RFC 7692,
// 7.1.1.2). It changes a response before it is relayed.
func CompressAlone(h http.Header) {
	lines := h[headerExtensions]
	if len(lines) != 1 || strings.Contains(lines[0], ",") {
		return // no extensions, or unknown ones
	}
	if agreed := parseExtensions(lines); agreed.deflate && !agreed.clientAlone {
		h.Set(headerExtensions, lines[0]+"; "+clientAlone)
	}
}

// extensions are the negotiated extensions of a WebSocket.
type extensions struct {
	deflate     bool
	clientAlone bool // messages are compressed independently
	serverAlone bool
}

// parseExtensions parses Sec-WebSocket-Extensions of a response. It ignores unknown
// extensions, whose frames are then invalid.
func parseExtensions(lines []string) extensions {
	var a extensions
	for _, line := range lines {
		for extension := range strings.SplitSeq(line, ",") {
			params := strings.Split(extension, ";")
			if strings.TrimSpace(params[0]) != deflateExtension {
				continue
			}
			a.deflate = true
			for _, p := range params[1:] {
				switch strings.TrimSpace(p) {
				case clientAlone:
					a.clientAlone = true
				case serverAlone:
					a.serverAlone = true
				}
			}
		}
	}
	return a
}
