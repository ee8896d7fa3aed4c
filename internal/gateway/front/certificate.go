package front

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/base/setting"
)

const (
	certSetting = "CODEHUB_TLS_CERT"
	keySetting  = "CODEHUB_TLS_KEY"
)

// maxCertificateFile bounds the size of a certificate file, which may be another file by
// mistake.
const maxCertificateFile = 1 << 20

// files serves the certificate of two files and reads them again when they change. It
// compares their content: a mounted Kubernetes secret replaces the files' folder, which
// a watch on the files misses.
type files struct {
	cert, key string
	interval  time.Duration
	names     []string
	log       *slog.Logger
	condition *health.Condition
	current   atomic.Pointer[pair]
}

// pair is a certificate with its key, and the digest of the files it was read from.
type pair struct {
	certificate tls.Certificate
	digest      [sha256.Size]byte
}

// openFiles reads the certificate of the settings. names are the hosts that it should
// cover, with * for any label. It returns a *setting.Problem that says which file is
// wrong; a certificate that has expired or lacks names is only a warning.
func openFiles(s Settings, names []string, log *slog.Logger, conditions *health.Monitor) (*files, error) {
	f := &files{cert: s.Cert, key: s.Key, interval: s.ReloadInterval, names: names, log: log, condition: conditions.New(health.Config{
		Name: "certificate", Failing: "TLS certificate not usable", Resolved: "TLS certificate usable again", Level: slog.LevelWarn, Remind: 24 * time.Hour, Log: log,
	})}
	p, err := f.read()
	if err != nil {
		return nil, err
	}
	f.use(p)
	return f, nil
}

func (f *files) tlsConfig() *tls.Config {
	return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &f.current.Load().certificate, nil
	}}
}

// run reads the files again when they change, until ctx ends. While they are not
// usable, the previous certificate stays in use.
func (f *files) run(ctx context.Context) error {
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		p, err := f.read()
		switch {
		case err != nil:
			f.condition.Set(err)
		case p.digest != f.current.Load().digest:
			f.use(p)
		default:
			f.condition.Set(validity(p.certificate.Leaf, time.Now()))
		}
	}
}

func (f *files) use(p *pair) {
	leaf := p.certificate.Leaf
	f.current.Store(p)
	f.log.Info("TLS certificate read", "names", leaf.DNSNames, "not_after", leaf.NotAfter)
	f.condition.Set(validity(leaf, time.Now()))
	for _, name := range f.names {
		if !covers(leaf, name) {
			f.log.Warn("TLS certificate does not cover a name that users open; browsers will refuse it", "name", name, "covered", leaf.DNSNames)
		}
	}
}

// validity returns why browsers refuse a certificate now, if they do.
func validity(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("it expired on %s", leaf.NotAfter.UTC().Format(time.DateTime))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("it is not valid before %s", leaf.NotBefore.UTC().Format(time.DateTime))
	}
	return nil
}

// covers reports whether browsers accept a certificate for a name. A * in the name
// stands for any label.
func covers(leaf *x509.Certificate, name string) bool {
	if rest, ok := bytes.CutPrefix([]byte(name), []byte("*.")); ok {
		// A name that is in no certificate: only a wildcard covers it.
		name = "codehub-any-label." + string(rest)
	}
	return leaf.VerifyHostname(name) == nil
}

func (f *files) read() (*pair, error) {
	certPEM, err := readBounded(f.cert)
	if err != nil {
		return nil, setting.Invalid(certSetting, err.Error(), "name the file with the certificate and its chain, in PEM")
	}
	keyPEM, err := readBounded(f.key)
	if err != nil {
		return nil, setting.Invalid(keySetting, err.Error(), "name the file with the certificate's private key, in PEM")
	}
	p := &pair{digest: sha256.Sum256(fmt.Appendf(nil, "%d\n%s%s", len(certPEM), certPEM, keyPEM))}
	if now := f.current.Load(); now != nil && now.digest == p.digest {
		return now, nil
	}
	chain, err := parseChain(certPEM)
	if err != nil {
		return nil, setting.Invalid(certSetting, f.cert+" "+err.Error(), "name the file with the certificate and its chain, in PEM")
	}
	if err := checkKey(keyPEM); err != nil {
		return nil, setting.Invalid(keySetting, f.key+" "+err.Error(), "name the file with the certificate's private key, in PEM and without a password")
	}
	if p.certificate, err = tls.X509KeyPair(certPEM, keyPEM); err == nil {
		return p, nil
	}
	for _, other := range chain[1:] {
		if key, ok := privateKey(keyPEM); ok && matches(other, key) {
			return nil, setting.Invalid(certSetting, f.cert+" begins with another certificate than that of the key", "put the server's certificate first, and the certificates of its authorities after it")
		}
	}
	if _, ok := privateKey(keyPEM); !ok {
		return nil, setting.Invalid(keySetting, fmt.Sprintf("%s has no key that can be used: %v", f.key, err), "give an RSA, ECDSA or Ed25519 key")
	}
	return nil, setting.Invalid(keySetting, fmt.Sprintf("the key in %s is not that of the certificate in %s", f.key, f.cert), "give the key that the certificate was issued for")
}

func readBounded(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxCertificateFile {
		return nil, fmt.Errorf("%s is no file of at most 1 MiB", path)
	}
	return os.ReadFile(path)
}

func parseChain(text []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("has a damaged certificate: %w", err)
		}
		chain = append(chain, c)
	}
	if len(chain) > 0 {
		return chain, nil
	}
	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		return nil, errors.New("has a private key and no certificate")
	}
	return nil, errors.New("has no certificate in PEM")
}

func checkKey(text []byte) error {
	switch {
	case bytes.Contains(text, []byte("BEGIN ENCRYPTED PRIVATE KEY")), bytes.Contains(text, []byte("Proc-Type: 4,ENCRYPTED")):
		return errors.New("has a key with a password, which codehub does not know")
	case bytes.Contains(text, []byte("PRIVATE KEY-----")):
		return nil
	case bytes.Contains(text, []byte("BEGIN CERTIFICATE-----")):
		return errors.New("has a certificate and no private key")
	}
	return errors.New("has no private key in PEM")
}

func privateKey(text []byte) (crypto.Signer, bool) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			continue
		}
		signer, ok := key.(crypto.Signer)
		return signer, ok && err == nil
	}
	return nil, false
}

func matches(c *x509.Certificate, key crypto.Signer) bool {
	public, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(key.Public())
}
