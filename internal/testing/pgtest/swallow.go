package pgtest

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Swallowing returns the address of a TCP relay before the database. silence makes the
// open connections accept data and deliver nothing, as after a network failure; later
// connections work.
func Swallowing(t *testing.T, dsn string) (through string, silence func()) {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var group sync.WaitGroup
	silent := make(chan struct{})
	pipe := func(to, from net.Conn, silent <-chan struct{}) {
		defer to.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			select {
			case <-silent:
				_, _ = io.Copy(io.Discard, from)
				return
			default:
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
	}
	group.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, address)
			if err != nil {
				_ = client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, server)
			now := silent
			mu.Unlock()
			group.Go(func() { pipe(server, client, now) })
			group.Go(func() { pipe(client, server, now) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		group.Wait()
	})
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	return "host=" + host + " port=" + port + " sslmode=disable user=" + cfg.User + " password='" + cfg.Password + "' dbname=" + cfg.Database, func() {
		mu.Lock()
		defer mu.Unlock()
		close(silent)
		silent = make(chan struct{})
	}
}
