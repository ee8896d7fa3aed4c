package sshgate

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/testing/harness"
)

// offerPacket is the packet of a client that offers ciphers.
func offerPacket(ciphers ...string) []byte {
	const padding = 4
	payload := ssh.Marshal(keyExchange{CiphersIn: ciphers, CiphersOut: ciphers})
	packet := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	packet = append(append(packet, padding), payload...)
	return append(packet, make([]byte, padding)...)
}

func TestOfferOf(t *testing.T) {
	t.Parallel()
	version := []byte("SSH-2.0-test\r\n")
	whole := append(slices.Clone(version), offerPacket("aes128-ctr", "aes128-gcm@openssh.com")...)
	for n := range whole {
		if _, err := offerOf(whole[:n]); !errors.Is(err, errShort) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	if got, err := offerOf(append(whole, "more"...)); err != nil || !slices.Equal(got, []string{"aes128-ctr", "aes128-gcm@openssh.com"}) {
		t.Errorf("%q, %v", got, err)
	}
	for name, b := range map[string][]byte{
		"no version":      []byte("GET / HTTP/1.1\r\n"),
		"a long version":  append([]byte("SSH-2.0-"), make([]byte, maxVersion)...),
		"a long packet":   append(slices.Clone(version), 0xff, 0xff, 0xff, 0xff, 4),
		"an empty packet": append(slices.Clone(version), 0, 0, 0, 0, 4),
		"another packet":  append(slices.Clone(version), disconnection("x")...),
	} {
		if _, err := offerOf(b); !errors.Is(err, errStrange) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// serveOffer serves one connection of a client, and returns its end and what the handshake
// returns.
func serveOffer(t *testing.T, wait time.Duration) (client net.Conn, host ssh.PublicKey, served <-chan error) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		greeted, ciphers, err := greet(conn, wait)
		if err == nil {
			cfg := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: serverVersion}
			cfg.Ciphers = ciphers
			cfg.AddHostKey(signer)
			_, _, _, err = ssh.NewServerConn(greeted, cfg)
		}
		done <- err
	}()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	_ = client.SetDeadline(time.Now().Add(harness.Patience))
	return client, signer.PublicKey(), done
}

// The cipher is AES-GCM for each client that has it, and another works as well.
func TestCipher(t *testing.T) {
	t.Parallel()
	for want, offer := range map[string][]string{
		"aes256-gcm@openssh.com": {"aes256-ctr", "aes256-gcm@openssh.com"},
		"aes128-gcm@openssh.com": {"chacha20-poly1305@openssh.com", "aes128-gcm@openssh.com"},
		"aes256-ctr":             {"chacha20-poly1305@openssh.com", "aes256-ctr"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			conn, host, served := serveOffer(t, harness.Patience)
			if i := slices.Index(offer, "aes256-ctr"); i == 0 {
				conn = bytewise{conn}
			}
			cfg := &ssh.ClientConfig{HostKeyCallback: ssh.FixedHostKey(host)}
			cfg.Ciphers = offer
			c, _, _, err := ssh.NewClientConn(conn, "", cfg)
			if err := errors.Join(err, <-served); err != nil {
				t.Fatal(err)
			}
			if got := c.(ssh.AlgorithmsConnMetadata).Algorithms(); got.Read.Cipher != want || got.Write.Cipher != want {
				t.Errorf("ciphers %s and %s", got.Read.Cipher, got.Write.Cipher)
			}
		})
	}
}

// bytewise sends each byte by itself.
type bytewise struct{ net.Conn }

func (c bytewise) Write(p []byte) (int, error) {
	for i := range p {
		if n, err := c.Conn.Write(p[i : i+1]); err != nil {
			return i + n, err
		}
	}
	return len(p), nil
}

// A client that waits for the server's offer gets it, with all ciphers.
func TestClientWaitsForOffer(t *testing.T) {
	t.Parallel()
	conn, _, served := serveOffer(t, time.Millisecond)
	if _, err := conn.Write([]byte("SSH-2.0-test\r\n")); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for {
		buf := make([]byte, 1024)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, buf[:n]...)
		offer, err := offerOf(all)
		if errors.Is(err, errShort) {
			continue
		}
		if err != nil || !slices.Equal(offer, allCiphers) {
			t.Errorf("%q, %v", offer, err)
		}
		break
	}
	conn.Close()
	if err := <-served; err == nil {
		t.Error("the handshake succeeded without a client")
	}
}
