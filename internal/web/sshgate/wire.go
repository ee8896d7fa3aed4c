package sshgate

import (
	"encoding/binary"
	"path"
	"strings"

	"golang.org/x/crypto/ssh"

	"codehub/internal/runtime/agent"
)

// The payloads of requests and channels: RFC 4254, and OpenSSH's PROTOCOL.

// disconnect is the end of a connection, by RFC 4253.
type disconnect struct {
	Reason  uint32 `sshtype:"1"`
	Message string
	Lang    string
}

// tooManyConnections is SSH_DISCONNECT_TOO_MANY_CONNECTIONS.
const tooManyConnections = 12

// disconnection returns the packet that ends a connection with a message before its key
// exchange, when packets are not encrypted.
func disconnection(message string) []byte {
	const block, minPadding = 8, 4
	payload := ssh.Marshal(disconnect{Reason: tooManyConnections, Message: message})
	padding := block - (4+1+len(payload))%block
	if padding < minPadding {
		padding += block
	}
	packet := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	packet = append(packet, byte(padding))
	packet = append(packet, payload...)
	return append(packet, make([]byte, padding)...)
}

type ptyRequest struct {
	Term          string
	Cols, Rows    uint32
	Width, Height uint32 // in pixels; ignored
	Modes         string
}

type envRequest struct{ Name, Value string }

type execRequest struct{ Command string }

type subsystemRequest struct{ Name string }

type windowChange struct {
	Cols, Rows    uint32
	Width, Height uint32
}

type signalRequest struct{ Name string }

type exitStatus struct{ Status uint32 }

type exitSignal struct {
	Name    string
	Core    bool
	Message string
	Lang    string
}

// forwardRequest is that of tcpip-forward and its cancellation.
type forwardRequest struct {
	Address string
	Port    uint32
}

type forwardReply struct{ Port uint32 }

// tcpChannel opens direct-tcpip and forwarded-tcpip.
type tcpChannel struct {
	Address       string
	Port          uint32
	OriginAddress string
	OriginPort    uint32
}

type streamlocalRequest struct{ Path string }

// directStreamlocal opens direct-streamlocal@openssh.com.
type directStreamlocal struct {
	Path     string
	Reserved string
	Zero     uint32
}

type forwardedStreamlocal struct{ Path, Reserved string }

// Limits of what a client sends.
const (
	maxTerm    = 128     // bytes
	maxPath    = 107     // bytes of the path of a socket, without the final NUL
	maxHost    = 255     // bytes
	maxCommand = 1 << 20 // bytes; Linux takes at most 128 KiB for one argument
	maxEnv     = 64      // variables
	maxEnvSize = 32 << 10
)

// parsePTY reads a pty-req.
func parsePTY(payload []byte) (*agent.Terminal, bool) {
	var p ptyRequest
	if ssh.Unmarshal(payload, &p) != nil || len(p.Term) > maxTerm || strings.ContainsFunc(p.Term, control) {
		return nil, false
	}
	modes, ok := parseModes([]byte(p.Modes))
	return &agent.Terminal{Name: p.Term, Rows: size(p.Rows), Cols: size(p.Cols), Modes: modes}, ok
}

// parseModes reads the encoded terminal modes of RFC 4254, section 8.
func parseModes(b []byte) (map[uint8]uint32, bool) {
	modes := map[uint8]uint32{}
	for len(b) > 0 {
		op := b[0]
		if op == 0 || op >= 160 { // the end, or opcodes whose arguments are not defined
			return modes, true
		}
		if len(b) < 5 {
			return nil, false
		}
		modes[op] = binary.BigEndian.Uint32(b[1:])
		b = b[5:]
	}
	return modes, true
}

func size(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }

func control(r rune) bool { return r < ' ' || r == 0x7f }

// parseEnv reads an env request. It accepts what OpenSSH servers commonly do: the rest
// has no effect.
func parseEnv(payload []byte) (entry string, ok bool) {
	var e envRequest
	if ssh.Unmarshal(payload, &e) != nil || !acceptedEnv(e.Name) || strings.ContainsRune(e.Value, 0) {
		return "", false
	}
	return e.Name + "=" + e.Value, true
}

func acceptedEnv(name string) bool {
	switch name {
	case "LANG", "TZ", "COLORTERM", "NO_COLOR", "GIT_PROTOCOL":
		return true
	}
	category, ok := strings.CutPrefix(name, "LC_")
	if !ok || category == "" || len(category) > 64 {
		return false
	}
	for _, c := range category {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// knownSignals are those of RFC 4254, section 6.10, and those that OpenSSH adds.
var knownSignals = map[string]bool{
	"ABRT": true, "ALRM": true, "FPE": true, "HUP": true, "ILL": true, "INT": true, "KILL": true,
	"PIPE": true, "QUIT": true, "SEGV": true, "TERM": true, "USR1": true, "USR2": true,
	"INFO@openssh.com": false,
}

// parseSignal reads a signal request.
func parseSignal(payload []byte) (name string, ok bool) {
	var s signalRequest
	if ssh.Unmarshal(payload, &s) != nil || !knownSignals[s.Name] {
		return "", false
	}
	return s.Name, true
}

// signalName is the name by which a client learns of a signal.
func signalName(name string) string {
	if knownSignals[name] {
		return name
	}
	return name + "@openssh.com"
}

// validSocket reports whether p can be the path of a socket in a workspace.
func validSocket(p string) bool {
	return p != "" && len(p) <= maxPath && path.IsAbs(p) && !strings.ContainsRune(p, 0)
}

func validHost(h string) bool {
	return h != "" && len(h) <= maxHost && !strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' })
}

func validPort(p uint32) bool { return p > 0 && p < 1<<16 }
