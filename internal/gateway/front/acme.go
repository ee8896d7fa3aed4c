package front

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"codehub/internal/base/health"
	"codehub/internal/base/setting"
)

// acme obtains certificates from an ACME authority and renews them. Its challenges are
// HTTP-01, answered by the plain http listener, or DNS-01, answered by the
// administrator's hook.
type acme struct {
	names  []string
	config *certmagic.Config
	cache  *certmagic.Cache
	issuer *certmagic.ACMEIssuer
	log    *slog.Logger

	mu        sync.Mutex
	failing   map[string]string // by name
	condition *health.Condition
}

func openACME(cfg Config, redirect net.Addr) (*acme, error) {
	a := &acme{names: wanted(cfg.Names), log: cfg.Log, failing: map[string]string{}, condition: cfg.Conditions.New(health.Config{
		Name: "certificate", Failing: "obtain TLS certificate failed; retrying", Resolved: "TLS certificates obtained", Level: slog.LevelWarn, Remind: 24 * time.Hour, Log: cfg.Log,
	})}
	template := certmagic.ACMEIssuer{
		CA: cfg.ACMEDirectory, Email: cfg.ACMEEmail, Agreed: true, DisableTLSALPNChallenge: true,
		HTTPProxy: http.ProxyFromEnvironment,
	}
	if cfg.ACMERoots != "" {
		roots, err := readBounded(cfg.ACMERoots)
		if err != nil {
			return nil, setting.Invalid("CODEHUB_ACME_ROOTS", err.Error(), "name a file with certificates in PEM")
		}
		template.TrustedRoots = x509.NewCertPool()
		if !template.TrustedRoots.AppendCertsFromPEM(roots) {
			return nil, setting.Invalid("CODEHUB_ACME_ROOTS", cfg.ACMERoots+" has no certificate in PEM", "name a file with certificates in PEM")
		}
	}
	if cfg.ACMEHook != "" {
		h, err := newHook(cfg.Settings, cfg.Log)
		if err != nil {
			return nil, err
		}
		template.DNS01Solver = h
	} else {
		host, port, err := net.SplitHostPort(redirect.String())
		if err != nil {
			return nil, fmt.Errorf("read the address of the plain http listener: %w", err)
		}
		// certmagic opens no other listener at this address.
		template.ListenHost = host
		template.AltHTTPPort, _ = strconv.Atoi(port)
	}
	logger := zap.New(zapLog{log: cfg.Log})
	template.Logger = logger
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return a.config, nil }, Logger: logger,
	})
	a.config = certmagic.New(a.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: cfg.ACMEFolder}, Logger: logger, OnEvent: a.event,
		DefaultServerName: a.names[0],
		// The library waits for the authority's OCSP server without a limit: at the start before it
		// serves a certificate, and before each renewal.
		OCSP: certmagic.OCSPConfig{DisableStapling: true},
	})
	a.issuer = certmagic.NewACMEIssuer(a.config, template)
	a.config.Issuers = []certmagic.Issuer{a.issuer}
	return a, nil
}

// wanted returns the names without those that a wildcard among them covers.
func wanted(names []string) []string {
	var out []string
	for _, name := range names {
		_, domain, _ := strings.Cut(name, ".")
		if strings.HasPrefix(name, "*.") || !slices.Contains(names, "*."+domain) {
			out = append(out, name)
		}
	}
	return out
}

func (a *acme) tlsConfig() *tls.Config { return &tls.Config{GetCertificate: a.config.GetCertificate} }

func (a *acme) run(ctx context.Context) error {
	defer a.cache.Stop()
	if err := a.config.ManageAsync(ctx, a.names); err != nil && ctx.Err() == nil {
		return fmt.Errorf("manage TLS certificates: %w", err)
	}
	<-ctx.Done()
	return nil
}

// challenges answers the authority's HTTP-01 requests and passes others to next.
func (a *acme) challenges(next http.Handler) http.Handler {
	return a.issuer.HTTPChallengeHandler(next)
}

// event records which names have no valid certificate.
func (a *acme) event(_ context.Context, event string, data map[string]any) error {
	name, _ := data["identifier"].(string)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch event {
	case "cert_obtained":
		delete(a.failing, name)
		a.log.Info("TLS certificate obtained", "name", name)
	case "cert_failed":
		a.failing[name] = fmt.Sprint(data["error"])
	default:
		return nil
	}
	var errs []error
	for _, name := range a.names {
		if why := a.failing[name]; why != "" {
			errs = append(errs, fmt.Errorf("%s: %s", name, why))
		}
	}
	a.condition.Set(errors.Join(errs...))
	return nil
}

// zapLog forwards certmagic's log: errors, which certmagic retries, as warnings, and the
// rest at debug level.
type zapLog struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (z zapLog) level(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (z zapLog) Enabled(l zapcore.Level) bool { return z.log.Enabled(context.Background(), z.level(l)) }

func (z zapLog) With(fields []zapcore.Field) zapcore.Core {
	return zapLog{z.log, append(z.fields[:len(z.fields):len(z.fields)], fields...)}
}

func (z zapLog) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if z.Enabled(e.Level) {
		return checked.AddCore(e, z)
	}
	return checked
}

func (z zapLog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(z.fields[:len(z.fields):len(z.fields)], fields...) {
		f.AddTo(enc)
	}
	attrs := []slog.Attr{slog.String("what", e.Message)}
	for name, value := range enc.Fields {
		attrs = append(attrs, slog.Any(name, value))
	}
	slices.SortFunc(attrs[1:], func(a, b slog.Attr) int { return cmp.Compare(a.Key, b.Key) })
	z.log.LogAttrs(context.Background(), z.level(e.Level), "certificate management", attrs...)
	return nil
}

func (zapLog) Sync() error { return nil }
