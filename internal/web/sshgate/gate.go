package sshgate

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/gateway/front"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/workspace"
)

// Config holds what a Gate needs. Fields are required unless marked optional.
type Config struct {
	Settings
	Budget   Budget
	Seed     []byte // of the Ed25519 host key
	Store    *postgres.DB
	Attacher *attach.Attacher
	Log      *slog.Logger
	// PageOf returns the address of a workspace's page, for messages.
	PageOf func(workspace.ID) string
	// Exempt reports whether an address carries the connections of several clients, so
	// that the limits of one address do not apply to it; optional.
	Exempt func(netip.Addr) bool
}

// Gate serves SSH. It is safe for concurrent use.
type Gate struct {
	cfg    Config
	host   ssh.Signer
	admit  *admission
	unread *unread

	ctx   context.Context // of all connections
	close context.CancelFunc

	turnedAway atomic.Int64 // clients that are being told why they are refused

	mu     sync.Mutex
	closed bool           // Close was called: open grows no more
	open   sync.WaitGroup // connections
}

const serverVersion = "SSH-2.0-codehub"

// Errors that end a connection before its workspace is looked up.
var (
	errFull    = errors.New("too many SSH connections are open on this server")
	errTooMany = errors.New("too many SSH connections are open for this user")
	errClosed  = errors.New("codehub is shutting down")
)

// New returns a Gate.
func New(cfg Config) (*Gate, error) {
	if len(cfg.Seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("the seed of the SSH host key has %d bytes, not %d", len(cfg.Seed), ed25519.SeedSize)
	}
	host, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(cfg.Seed))
	if err != nil {
		return nil, fmt.Errorf("make the SSH host key: %w", err)
	}
	g := &Gate{cfg: cfg, host: host, admit: newAdmission(cfg.Settings, cfg.Budget, time.Now), unread: newUnread(cfg.Budget.Unread)}
	g.ctx, g.close = context.WithCancel(context.Background())
	return g, nil
}

// HostKey returns the public host key, as in authorized_keys.
func (g *Gate) HostKey() string {
	line := ssh.MarshalAuthorizedKey(g.host.PublicKey())
	return string(line[:len(line)-1])
}

// HostFingerprint shows the host key as OpenSSH does.
func (g *Gate) HostFingerprint() string { return ssh.FingerprintSHA256(g.host.PublicKey()) }

// Open returns the number of open connections whose user is known.
func (g *Gate) Open() int { return g.admit.count() }

// Slots returns how many connections whose user is known, channels and listeners are open,
// and how many may be open.
func (g *Gate) Slots() (used, all int) { return g.admit.slotsUsed(), g.admit.shares.open }

// acceptPause is the wait after a failed Accept, such as for want of file descriptors.
const acceptPause = 100 * time.Millisecond

// Serve accepts connections until ctx ends, and closes the listener then. Connections
// continue until Close.
func (g *Gate) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("serve SSH: %w", err)
		case err != nil:
			g.cfg.Log.Warn("accept an SSH connection failed", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		if !g.enter() {
			conn.Close()
			continue
		}
		go func() {
			defer g.open.Done()
			g.serve(conn)
		}()
	}
}

// enter counts a connection, unless the gate is closed. g.open.Done must follow if it
// returns true.
func (g *Gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.open.Add(1)
	return true
}

// Close ends all connections, and returns once they have ended or ctx ends. Connections
// that begin afterwards are closed at once.
func (g *Gate) Close(ctx context.Context) {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.open.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// tcpKeepAlive drops clients that are gone, without dropping those whose network is
// away for a few minutes.
var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 30 * time.Second, Count: 10}

// serve serves a connection of the listener.
func (g *Gate) serve(conn net.Conn) {
	defer conn.Close()
	if tcp, ok := front.TCP(conn); ok {
		_ = tcp.SetKeepAliveConfig(tcpKeepAlive)
	}
	from := addressOf(conn)
	network := networkOf(from)
	if g.cfg.Exempt != nil && g.cfg.Exempt(from) {
		network = netip.Prefix{}
	}
	began := g.admit.begin(network, func() { conn.Close() })
	if began == nil {
		g.cfg.Log.Debug("SSH connection refused", "remote", from.String(), "reason", "too many attempts")
		g.turnAway(conn, "Too many login attempts from your address. Try again in a minute.")
		return
	}
	login := login{gate: g, from: from}
	sc, channels, requests, err := g.handshake(conn, login.config())
	switch {
	case err == nil:
		g.admit.end(began, 0)
	default:
		// A connection that offers no key, as a scan does, counts as well.
		g.admit.end(began, max(1, login.refused))
		g.cfg.Log.Info("SSH login failed", "remote", from.String(), "keys", login.refused, "err", err)
		return
	}
	caller, key := sc.Permissions.ExtraData[callerKey{}].(workspace.Caller), sc.Permissions.ExtraData[keyKey{}].(string)
	g.touch(key)
	c := newConnection(g, sc, caller)
	c.remote = from.String()
	c.run(channels, requests, func(ctx context.Context) (workspace.ID, error) {
		return g.cfg.Store.NamedWorkspace(ctx, caller, sc.User())
	})
}

// turnAway tells a client why its connection is refused, without the cost of a key
// exchange. It returns once the client has gone, or after turnAwayTimeout.
func (g *Gate) turnAway(conn net.Conn, message string) {
	if !g.beginTurningAway() {
		return
	}
	defer g.turnedAway.Add(-1)
	defer context.AfterFunc(g.ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(turnAwayTimeout))
	if _, err := conn.Write(append([]byte(serverVersion+"\r\n"), disconnection(message)...)); err != nil {
		return
	}
	// A close before all input was read resets the connection, and the message may be lost.
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, maxTurnAwayInput))
}

// beginTurningAway counts a client that is to be told why it is refused. It returns false, and
// counts nothing, if too many clients are being told. After true, g.turnedAway.Add(-1) must follow.
func (g *Gate) beginTurningAway() bool {
	if g.turnedAway.Add(1) > int64(g.admit.shares.turnedAway) {
		g.turnedAway.Add(-1)
		return false
	}
	return true
}

// ServeCaller serves SSH on a connection of a caller that has been authenticated, until
// it ends. It closes the connection. The client needs no key, and enters the given
// workspace under any user name.
func (g *Gate) ServeCaller(conn net.Conn, caller workspace.Caller, id workspace.ID, from netip.Addr) {
	defer conn.Close()
	if !g.enter() {
		return
	}
	defer g.open.Done()
	cfg := g.config()
	cfg.NoClientAuth = true
	sc, channels, requests, err := g.handshake(conn, cfg)
	if err != nil {
		g.cfg.Log.Info("SSH handshake failed", "remote", from.String(), "user", caller.UserID, "err", err)
		return
	}
	c := newConnection(g, sc, caller)
	c.remote = from.String()
	c.run(channels, requests, func(context.Context) (workspace.ID, error) { return id, nil })
}

// handshake authenticates a connection within loginTimeout.
func (g *Gate) handshake(conn net.Conn, cfg *ssh.ServerConfig) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	timeout := time.AfterFunc(loginTimeout, func() { conn.Close() })
	defer timeout.Stop()
	defer context.AfterFunc(g.ctx, func() { conn.Close() })()
	greeted, ciphers, err := greet(conn, offerWait)
	if err != nil {
		return nil, nil, nil, err
	}
	cfg.Ciphers = ciphers
	return ssh.NewServerConn(greeted, cfg)
}

func (g *Gate) config() *ssh.ServerConfig {
	cfg := &ssh.ServerConfig{ServerVersion: serverVersion, MaxAuthTries: maxAuthTries}
	cfg.KeyExchanges = []string{
		ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519,
		ssh.KeyExchangeECDHP256, ssh.KeyExchangeECDHP384, ssh.KeyExchangeECDHP521,
	}
	cfg.MACs = []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM, ssh.HMACSHA256, ssh.HMACSHA512}
	cfg.AddHostKey(g.host)
	return cfg
}

type (
	callerKey struct{}
	keyKey    struct{}
)

// login authenticates one connection of the listener.
type login struct {
	gate    *Gate
	from    netip.Addr
	refused int // keys
}

// lookupTimeout limits a query of the database.
const lookupTimeout = 10 * time.Second

func (l *login) config() *ssh.ServerConfig {
	cfg := l.gate.config()
	for _, of := range algorithms {
		cfg.PublicKeyAuthAlgorithms = append(cfg.PublicKeyAuthAlgorithms, of...)
	}
	cfg.PublicKeyCallback = l.publicKey
	return cfg
}

// publicKey returns the user of a key. The client has not proved yet that it has it.
func (l *login) publicKey(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	hash := hashOf(key)
	ctx, cancel := context.WithTimeout(l.gate.ctx, lookupTimeout)
	defer cancel()
	u, k, err := l.gate.cfg.Store.SSHKeyUser(ctx, hash)
	switch {
	case workspace.CodeOf(err) == workspace.CodeUnauthenticated:
		l.refused++
		return nil, errUnknownKey
	case err != nil:
		l.gate.cfg.Log.Error("look up an SSH key failed", "err", err)
		return nil, errUnknownKey
	}
	caller := workspace.Caller{UserID: u.ID, Username: u.Username, Admin: u.Admin, Session: hex.EncodeToString(hash)}
	if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		caller.Address = at.Addr()
	}
	return &ssh.Permissions{ExtraData: map[any]any{callerKey{}: caller, keyKey{}: k.ID}}, nil
}

var errUnknownKey = errors.New("the key is not registered")

// touch records the use of a key.
func (g *Gate) touch(key string) {
	ctx, cancel := context.WithTimeout(g.ctx, lookupTimeout)
	defer cancel()
	if err := g.cfg.Store.TouchSSHKey(ctx, key, time.Now()); err != nil {
		g.cfg.Log.Debug("record the use of an SSH key failed", "err", err)
	}
}

func addressOf(conn net.Conn) netip.Addr {
	a, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}
