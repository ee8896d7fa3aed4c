// Package auth authenticates requests: passwords, login with lockout, sessions, API
// tokens, and the first user. It stores only hashes of secrets: argon2id for
// passwords, SHA-256 for session IDs and tokens.
package auth

import (
	"context"
	"log/slog"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"codehub/internal/health"
	"codehub/internal/passkey"
	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"golang.org/x/sync/singleflight"
)

// Store is the database as auth uses it, implemented by *postgres.DB. Missing rows
// are workspace.CodeNotFound; ended sessions and tokens are
// workspace.CodeUnauthenticated.
type Store interface {
	UserCount(ctx context.Context) (int, error)
	SetupKey(ctx context.Context) ([]byte, error)
	CreateUser(ctx context.Context, u postgres.User) (postgres.User, error)
	CreateFirstUser(ctx context.Context, from netip.Addr, u postgres.User) (postgres.User, error)
	UserByName(ctx context.Context, username string) (postgres.User, error)
	User(ctx context.Context, id string) (postgres.User, error)
	OwnerOf(ctx context.Context, id workspace.ID) (postgres.User, error)
	RecordLoginFailure(ctx context.Context, userID string, rule postgres.LockRule) error
	RecordNameFailure(ctx context.Context, name string, rule postgres.LockRule) error
	NameLockedUntil(ctx context.Context, name string) (*time.Time, error)
	ResetLoginFailures(ctx context.Context, userID string) error
	RenewPasswordHash(ctx context.Context, userID, old, hash string) error
	SetPassword(ctx context.Context, caller workspace.Caller, verified, hash string, next *postgres.Successor) (ends time.Time, err error)

	CreateSession(ctx context.Context, hash []byte, userID, verified string, expires time.Time, from postgres.Client) error
	SignIn(ctx context.Context, in postgres.SignIn) (postgres.User, error)
	LinkIdentity(ctx context.Context, caller workspace.Caller, proof string, in postgres.SignIn) error
	UnlinkIdentity(ctx context.Context, caller workspace.Caller, proof, id string) error
	Identities(ctx context.Context, caller workspace.Caller) ([]postgres.Identity, error)
	SessionUser(ctx context.Context, hash []byte) (postgres.User, time.Time, error)
	DeleteSession(ctx context.Context, hash []byte, from netip.Addr) error
	UserSessions(ctx context.Context, caller workspace.Caller, page postgres.Page) (list []postgres.UserSession, next string, err error)
	EndSession(ctx context.Context, caller workspace.Caller, id string) error
	EndOtherSessions(ctx context.Context, caller workspace.Caller) (ended int64, err error)
	TouchSession(ctx context.Context, hash []byte, at time.Time) error
	ValidSessions(ctx context.Context, hashes [][]byte) ([][]byte, error)

	BeginDeviceLogin(ctx context.Context, l postgres.ProgramLogin) error
	DeviceLogin(ctx context.Context, caller workspace.Caller, userCode string) (postgres.ProgramLogin, error)
	AnswerDeviceLogin(ctx context.Context, caller workspace.Caller, userCode string, allow bool) error
	AllowBrowserLogin(ctx context.Context, caller workspace.Caller, l postgres.ProgramLogin) error
	RedeemProgramLogin(ctx context.Context, hash, proof []byte) (caller workspace.Caller, name string, expires time.Time, err error)

	InvitedUser(ctx context.Context, hash []byte) (postgres.User, error)
	AcceptInvitation(ctx context.Context, caller workspace.Caller, hash []byte, password string) (postgres.User, error)

	HasPasskeys(ctx context.Context, userID string) (bool, error)
	Passkeys(ctx context.Context, caller workspace.Caller) (list []postgres.Passkey, codes int, err error)
	BeginPasskey(ctx context.Context, a postgres.PasskeyAttempt) error
	PendingPasskey(ctx context.Context, hash []byte, login bool) (postgres.PendingPasskey, error)
	ChallengePasskey(ctx context.Context, hash []byte, login bool, challenge []byte, name string) error
	AnswerPasskey(ctx context.Context, in postgres.PasskeyAnswer) (postgres.User, postgres.PasskeyVerdict, error)
	CancelPasskey(ctx context.Context, hash []byte) error
	RenamePasskey(ctx context.Context, caller workspace.Caller, id, name string) error
	RemovePasskey(ctx context.Context, caller workspace.Caller, proof, id string, keepOne bool) error
	ReplaceRecoveryCodes(ctx context.Context, caller workspace.Caller, proof string, hashes [][]byte) error

	CreateTicket(ctx context.Context, ticket, session []byte, host workspace.Host, nonce []byte) error
	RedeemTicket(ctx context.Context, ticket []byte, host workspace.Host, nonce, hash []byte) (time.Time, error)
	WorkspaceSession(ctx context.Context, hash []byte) (postgres.WorkspaceSession, error)

	CreateToken(ctx context.Context, caller workspace.Caller, t postgres.Token) (postgres.Token, error)
	Tokens(ctx context.Context, caller workspace.Caller, page postgres.Page) (list []postgres.Token, next string, err error)
	Token(ctx context.Context, caller workspace.Caller, id string) (postgres.Token, error)
	DeleteToken(ctx context.Context, caller workspace.Caller, id string) error
	TokenUser(ctx context.Context, hash []byte) (postgres.User, postgres.Token, error)
	TouchToken(ctx context.Context, id string, at time.Time) error
}

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
	store  Store
	log    *slog.Logger
	now    func() time.Time
	secure bool

	hasher          *hasher
	attempts        *attempts
	names           *turns
	noPasswords     bool           // see Settings.NoPasswordLogin
	requirePasskey  bool           // see Settings.RequirePasskey
	party           *passkey.Party // nil: browsers make no passkeys for this server's address
	refusalInterval time.Duration  // responses to refused logins are delayed to a multiple of it

	cache *cache
	loads singleflight.Group

	watches watches
	checks  *health.Condition // of the watched sessions

	hasUsers atomic.Bool
}

// New returns an Auth. Watch only works while Run is running.
func New(store Store, cfg Config) *Auth {
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	// No party: PasskeysPossible says so, and the pages with it.
	party, _ := passkey.New(cfg.URL)
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
