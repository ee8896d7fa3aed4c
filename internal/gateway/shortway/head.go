package shortway

import "bytes"

// plainHead reports whether a complete head, with the empty line, is that of a plain
// request, and returns its Host and its target. It accepts less than RFC 9110 allows, so
// that every implementation of HTTP finds the same request in it: printable ASCII only,
// one Host, a target that begins with a slash, and no field that frames a body or changes
// how the connection is used.
func plainHead(head []byte) (host, target []byte, ok bool) {
	head, ok = bytes.CutSuffix(head, []byte("\r\n\r\n"))
	if !ok {
		return nil, nil, false
	}
	line, rest, more := bytes.Cut(head, []byte("\r\n"))
	method, target, _ := bytes.Cut(line, []byte{' '})
	if string(method) != "GET" && string(method) != "HEAD" {
		return nil, nil, false
	}
	if target, ok = bytes.CutSuffix(target, []byte(" HTTP/1.1")); !ok || !plainTarget(target) {
		return nil, nil, false
	}
	for more {
		line, rest, more = bytes.Cut(rest, []byte("\r\n"))
		name, value, found := bytes.Cut(line, []byte{':'})
		if !found || !plainName(name) || !printable(value, ' ') {
			return nil, nil, false
		}
		switch len(name) { // most names differ in length
		case len("Te"):
			if bytes.EqualFold(name, []byte("Te")) {
				return nil, nil, false
			}
		case len("Host"):
			if bytes.EqualFold(name, []byte("Host")) {
				if host != nil {
					return nil, nil, false
				}
				if host = bytes.Trim(value, " "); !plainHost(host) {
					return nil, nil, false
				}
			}
		case len("Expect"):
			if bytes.EqualFold(name, []byte("Expect")) {
				return nil, nil, false
			}
		case len("Upgrade"): // and Trailer
			if bytes.EqualFold(name, []byte("Upgrade")) || bytes.EqualFold(name, []byte("Trailer")) {
				return nil, nil, false
			}
		case len("Connection"):
			if bytes.EqualFold(name, []byte("Connection")) && !bytes.EqualFold(bytes.Trim(value, " "), []byte("keep-alive")) {
				return nil, nil, false
			}
		case len("Content-Length"):
			if bytes.EqualFold(name, []byte("Content-Length")) {
				return nil, nil, false
			}
		case len("Transfer-Encoding"):
			if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
				return nil, nil, false
			}
		}
	}
	return host, target, host != nil
}

// printable reports whether all bytes are ASCII from first to the tilde.
func printable(s []byte, first byte) bool {
	for _, c := range s {
		if c < first || c > '~' {
			return false
		}
	}
	return true
}

func plainName(name []byte) bool {
	for _, c := range name {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-') {
			return false
		}
	}
	return len(name) > 0
}

func plainHost(host []byte) bool {
	for _, c := range host {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || bytes.IndexByte([]byte("-._:[]"), c) >= 0) {
			return false
		}
	}
	return len(host) > 0
}
