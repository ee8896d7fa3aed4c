// Package auth authenticates requests: passwords, login with lockout, sessions, API
// tokens, and the first user. It stores only hashes of secrets: argon2id for
// passwords, SHA-256 for session IDs and tokens.
package auth

import (
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"

	"golang.org/x/sync/singleflight"
)

// SessionLifetime is counted from the login and not from the last use, so that a
// stolen cookie expires.
const SessionLifetime = 30 * 24 * time.Hour

// Config configures New.
type Config struct {
	// URL is CODEHUB_URL. With https the cookie is Secure and has the __Host-
	// prefix, so that other subdomains cannot set it.
	URL *url.URL
	Log *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	Settings
	// CheapHashes, for tests only, makes new password hashes fast and insecure.
	CheapHashes bool
	// Conditions lists that sessions cannot be checked; nil: it is only logged.
	Conditions *health.Monitor
}

// Auth authenticates requests. It is safe for concurrent use.
type Auth struct {
	store  *postgres.DB
	log    *slog.Logger
	now    func() time.Time
	secure bool

	hasher          *hasher
	attempts        *attempts
	names           *turns
	noPasswords     bool          // see Settings.NoPasswordLogin
	requirePasskey  bool          // see Settings.RequirePasskey
	party           *party        // nil: browsers make no passkeys for this server's address
	refusalInterval time.Duration // responses to refused logins are delayed to a multiple of it

	cache *cache
	loads singleflight.Group

	watches watches
	checks  *health.Condition // of the watched sessions

	hasUsers atomic.Bool
}

// New returns an Auth. Watch only works while Run is running.
func New(store *postgres.DB, cfg Config) *Auth {
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	// No party: PasskeysPossible says so, and the pages with it.
	party, _ := newParty(cfg.URL)
	return &Auth{
		store:           store,
		log:             cfg.Log,
		now:             now,
		secure:          cfg.URL != nil && cfg.URL.Scheme == "https",
		hasher:          newHasher(argonOf(cfg), cfg.Settings),
		attempts:        newAttempts(maxAttemptNames),
		names:           newTurns(cfg.Settings.withDefaults().LoginWait),
		noPasswords:     cfg.NoPasswordLogin,
		requirePasskey:  cfg.RequirePasskey,
		party:           party,
		refusalInterval: refusalQuantum,
		cache:           newCache(maxCached),
		checks: cfg.Conditions.New(health.Config{
			Name: "sessions", Failing: "revalidate sessions failed; retrying", Resolved: "sessions are revalidated again", Level: slog.LevelWarn, Log: cfg.Log,
		}),
		watches: watches{poke: make(chan struct{}, 1), by: map[string]map[*watch]struct{}{}},
	}
}
