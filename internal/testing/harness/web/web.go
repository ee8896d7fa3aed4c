// Package web gives a test what the API and the pages of a server have in
// common: an HTTP server, accounts that can log in, and the events of a
// database. The test makes the handler.
package web

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	"golang.org/x/crypto/argon2"

	"codehub/internal/bus"
	"codehub/internal/gateway/shortway"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Server listens on the loopback, and answers once Serve was called.
type Server struct {
	*fixture.Database
	HTTP *httptest.Server
	URL  *url.URL
	Auth *auth.Auth
	Hub  *bus.Hub
	// Streams are the event streams that continue after their handlers.
	Streams *shortway.Group

	t    testing.TB
	log  *slog.Logger
	name string // of the host; empty: its address
}

// Option changes a Server before it serves.
type Option func(*Server)

// AtLocalhost has the server's URLs name localhost instead of an address, for hosts
// below it.
func AtLocalhost(s *Server) { s.name = "localhost" }

// New makes a server on a database. It ends with the test.
func New(t testing.TB, db *fixture.Database, log *slog.Logger, options ...Option) *Server {
	t.Helper()
	s := &Server{Database: db, HTTP: httptest.NewUnstartedServer(nil), Streams: shortway.NewGroup(), t: t, log: log}
	for _, o := range options {
		o(s)
	}
	s.HTTP.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.URL = &url.URL{Scheme: "http", Host: s.HTTP.Listener.Addr().String()}
	if s.name != "" {
		s.URL.Host = net.JoinHostPort(s.name, s.URL.Port())
	}
	s.Auth = auth.New(db.DB, auth.Config{URL: s.URL, Log: log, CheapHashes: true})
	s.Hub = bus.New(bus.Config{Load: bus.Batched(s.reload), AuthChanged: s.Auth.Invalidate, Log: log})
	return s
}

// Serve starts the server with this handler, and its events: after every
// notification of the database the functions are called.
func (s *Server) Serve(h http.Handler, notified ...func()) {
	s.HTTP.Config.Handler = h
	s.HTTP.Start()
	s.HTTP.URL = s.URL.String()
	s.t.Cleanup(func() {
		s.HTTP.CloseClientConnections() // event streams have no end of their own
		s.HTTP.Close()
		s.Streams.End()
		if err := s.Streams.Wait(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	s.background(s.Auth.Run)
	s.background(func(ctx context.Context) error {
		return postgres.NewListener(s.DSN, s.log, nil).Run(ctx, func(n postgres.Notification) {
			s.Hub.Handle(n.Channel, n.Payload)
			for _, f := range notified {
				f()
			}
		}, func() {
			s.Auth.InvalidateAll()
			s.Hub.Gap()
		})
	})
}

// background runs f until the end of the test.
func (s *Server) background(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = f(ctx) })
	s.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (s *Server) reload(ctx context.Context, wanted []bus.Wanted) ([]workspace.Workspace, error) {
	owners, ids := make([]string, len(wanted)), make([]workspace.ID, len(wanted))
	for i, w := range wanted {
		owners[i], ids[i] = w.Owner, w.ID
	}
	return s.DB.Reload(ctx, owners, ids)
}

// AddAccount creates a user who can log in with this password.
func (s *Server) AddAccount(name, password string, admin bool) workspace.Caller {
	s.t.Helper()
	u, err := s.DB.CreateUser(s.t.Context(), postgres.User{Username: name, PasswordHash: CheapHash(password), Admin: admin})
	if err != nil {
		s.t.Fatal(err)
	}
	return workspace.Caller{UserID: u.ID, Username: u.Username, Admin: u.Admin}
}

// CheapHash is a password's hash with parameters that cost a test nothing.
func CheapHash(password string) string {
	b := base64.RawStdEncoding
	salt := []byte("salt for a test!")
	return fmt.Sprintf("$argon2id$v=19$m=64,t=1,p=1$%s$%s", b.EncodeToString(salt),
		b.EncodeToString(argon2.IDKey([]byte(password), salt, 1, 64, 1, 32)))
}
