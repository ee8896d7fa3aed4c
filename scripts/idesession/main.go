// Command idesession holds a session of a workspace's IDE open through codehub, as an open tab does,
// and prints a line for each thing that happens to it. When its WebSocket breaks it reconnects, with
// the session's token. It ends once the IDE no longer knows the session.
//
//	CODEHUB_TOKEN=… idesession ADDRESS
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"codehub/api"
)

// The IDE's protocol: each message has a header of 13 bytes with its kind, its number, the number of
// the last message that was received, and its length.
const (
	header      = 13
	regular     = 1
	control     = 2
	acknowledge = 3
)

// refused is what the IDE says if it does not accept a connection.
type refused string

func (r refused) Error() string { return "the IDE: " + string(r) }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: CODEHUB_TOKEN=… idesession ADDRESS")
		os.Exit(2)
	}
	if err := hold(context.Background(), os.Args[1], os.Getenv("CODEHUB_TOKEN")); err != nil {
		fmt.Println("ended:", err)
		os.Exit(1)
	}
}

func hold(ctx context.Context, address, token string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	session := rand.Text()
	var broken time.Time
	for {
		query := url.Values{"reconnectionToken": {session}, "reconnection": {strconv.FormatBool(!broken.IsZero())}, "skipWebSocketFrames": {"false"}}
		u.RawQuery = query.Encode()
		conn, err := connect(ctx, u, token)
		var no refused
		switch {
		case errors.As(err, &no), err != nil && broken.IsZero():
			return err
		case err != nil:
			time.Sleep(50 * time.Millisecond)
			continue
		case broken.IsZero():
			fmt.Println("connected")
		default:
			fmt.Printf("reconnected after %d ms\n", time.Since(broken).Milliseconds())
		}
		err = stay(conn)
		broken = time.Now()
		fmt.Println("broken:", err)
		_ = conn.Close()
	}
}

// connect opens a WebSocket, and the session in it.
func connect(ctx context.Context, u *url.URL, token string) (net.Conn, error) {
	opening, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// The hosts below localhost are this machine.
	local := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("localhost", u.Port()))
	}}}
	ws, _, err := websocket.Dial(opening, u.String(), &websocket.DialOptions{HTTPClient: local, HTTPHeader: http.Header{api.TokenHeader: {token}}})
	if err != nil {
		return nil, err
	}
	conn := websocket.NetConn(ctx, ws, websocket.MessageBinary)
	if err := open(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func open(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if err := say(conn, map[string]any{"type": "auth", "auth": "", "data": ""}); err != nil {
		return err
	}
	for {
		kind, _, b, err := read(conn)
		if err != nil {
			return err
		}
		if kind != control {
			continue
		}
		var m struct{ Type, Reason string }
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		switch m.Type {
		case "sign":
			err = say(conn, map[string]any{"type": "connectionType", "signedData": "", "desiredConnectionType": 1})
		case "ok":
			return conn.SetDeadline(time.Time{})
		case "error":
			err = refused(m.Reason)
		}
		if err != nil {
			return err
		}
	}
}

// stay receives messages until the connection breaks.
func stay(conn net.Conn) error {
	for {
		kind, number, _, err := read(conn)
		if err != nil {
			return err
		}
		if kind == regular {
			if err := send(conn, acknowledge, number, nil); err != nil {
				return err
			}
		}
	}
}

func say(conn net.Conn, message map[string]any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return send(conn, control, 0, b)
}

func send(conn net.Conn, kind byte, received uint32, data []byte) error {
	b := make([]byte, header, header+len(data))
	b[0] = kind
	binary.BigEndian.PutUint32(b[5:], received)
	binary.BigEndian.PutUint32(b[9:], uint32(len(data)))
	_, err := conn.Write(append(b, data...))
	return err
}

func read(conn net.Conn) (kind byte, number uint32, data []byte, err error) {
	b := make([]byte, header)
	if _, err := io.ReadFull(conn, b); err != nil {
		return 0, 0, nil, err
	}
	data = make([]byte, binary.BigEndian.Uint32(b[9:]))
	_, err = io.ReadFull(conn, data)
	return b[0], binary.BigEndian.Uint32(b[1:]), data, err
}
