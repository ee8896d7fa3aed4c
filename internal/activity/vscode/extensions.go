package vscode

import (
	"net/http"
	"strings"
)

// headerExtensions is where what was agreed on stands in the answer.
const headerExtensions = "Sec-Websocket-Extensions"

const (
	deflateExtension = "permessage-deflate"
	clientAlone      = "client_no_context_takeover"
	serverAlone      = "server_no_context_takeover"
)

// CompressAlone has the client of a WebSocket compress each of its messages
// on its own, where it was agreed that it compresses at all: reading them
// then takes no window for each connection. A server may say so unasked, and
// what is sent that way needs nothing of whoever unpacks it (RFC 7692, 7.1.1.2).
// It changes an answer before it is passed on.
func CompressAlone(h http.Header) {
	lines := h[headerExtensions]
	if len(lines) != 1 || strings.Contains(lines[0], ",") {
		return // nothing, or more than is known
	}
	if agreed := parseExtensions(lines); agreed.deflate && !agreed.clientAlone {
		h.Set(headerExtensions, lines[0]+"; "+clientAlone)
	}
}

// agreement is what both sides of a WebSocket have agreed on.
type agreement struct {
	deflate     bool
	clientAlone bool // each message is compressed on its own
	serverAlone bool
}

// parseExtensions reads Sec-WebSocket-Extensions of an answer. An extension
// that is not known shows as frames that are none.
func parseExtensions(lines []string) agreement {
	var a agreement
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
