package signin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"codehub/internal/base/setting"
	"codehub/internal/gateway/origin"
)

// Settings are the settings of logins with identity providers, as codehub serve declares
// them. Resolve reads the file.
type Settings struct {
	File     string        `name:"oidc-file" env:"CODEHUB_OIDC_FILE" help:"File with the OpenID Connect providers that users log in with, in JSON (default: none)."`
	Interval time.Duration `name:"oidc-refresh-interval" env:"CODEHUB_OIDC_REFRESH_INTERVAL" min:"1s" max:"10m" default:"5m" help:"Longest time until a user whom the provider no longer accepts is logged out."`
	Grace    time.Duration `name:"oidc-outage" env:"CODEHUB_OIDC_OUTAGE" min:"0" max:"720h" default:"12h" help:"How long users stay logged in while their provider does not respond."`

	Providers []ProviderConfig `kong:"-"` // of File
}

// ProviderConfig is a provider in the file.
type ProviderConfig struct {
	// ID is part of the addresses that the provider knows.
	ID   string `json:"id"`
	Name string `json:"name"` // on the login page
	// Issuer is the provider's address, as in its discovery document.
	Issuer           string `json:"issuer"`
	ClientID         string `json:"client_id"`
	ClientSecretFile string `json:"client_secret_file"`
	// AuthMethod is how the client authenticates at the token endpoint: client_secret_basic
	// or client_secret_post. Empty: as the discovery document says, client_secret_basic if it
	// names both.
	AuthMethod string `json:"token_endpoint_auth_method"`
	// CAFile has the certificates by which the provider's https is trusted; empty: those of
	// the system.
	CAFile string   `json:"ca_file"`
	Scopes []string `json:"scopes"`
	// Parameters are added to the address to which browsers are sent.
	Parameters    map[string]string `json:"parameters"`
	UsernameClaim string            `json:"username_claim"`
	GroupsClaim   string            `json:"groups_claim"`
	// AllowedGroups may log in, and so may AdminGroups, who become administrators; no
	// AllowedGroups: every user of the provider may.
	AllowedGroups []string `json:"allowed_groups"`
	AdminGroups   []string `json:"admin_groups"`

	// secrets are the lines of ClientSecretFile: the client's secret, and earlier ones,
	// with which refresh tokens may still be encrypted.
	secrets []string
}

const (
	fileSetting  = "CODEHUB_OIDC_FILE"
	maxProviders = 16
	minSecret    = 16

	// The ways in which a client sends its secret to the token endpoint.
	authBasic = "client_secret_basic"
	authPost  = "client_secret_post"
)

var (
	validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	// reserved are the parameters of the flow itself.
	reserved = []string{"client_id", "client_secret", "redirect_uri", "response_type", "response_mode", "scope", "state", "nonce", "code_challenge", "code_challenge_method", "request", "request_uri"}
)

// Resolve reads the file. It returns an invalid setting as *setting.Problem.
func (s *Settings) Resolve() error {
	if s.File == "" {
		return nil
	}
	list, err := readProviders(s.File)
	if err != nil {
		return setting.Invalid(fileSetting, err.Error(), "see docs/signin.md for the format")
	}
	s.Providers = list
	return nil
}

func readProviders(file string) ([]ProviderConfig, error) {
	b, err := setting.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var content struct {
		Providers []ProviderConfig `json:"providers"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&content); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s has more than one JSON object", file)
	}
	if n := len(content.Providers); n == 0 || n > maxProviders {
		return nil, fmt.Errorf("%s has %d providers, not 1 to %d", file, n, maxProviders)
	}
	for i := range content.Providers {
		p := &content.Providers[i]
		if err := p.resolve(); err != nil {
			return nil, fmt.Errorf("provider %q: %w", p.ID, err)
		}
		for _, other := range content.Providers[:i] {
			switch {
			case other.ID == p.ID:
				return nil, fmt.Errorf("two providers have the id %q", p.ID)
			case other.Issuer == p.Issuer:
				return nil, fmt.Errorf("the providers %q and %q have the same issuer", other.ID, p.ID)
			}
		}
	}
	return content.Providers, nil
}

func (p *ProviderConfig) resolve() error {
	switch {
	case !validID.MatchString(p.ID):
		return errors.New("id has 1 to 32 lower-case letters, digits and hyphens")
	case p.ClientID == "":
		return errors.New("client_id is missing")
	case p.ClientSecretFile == "":
		return errors.New("client_secret_file is missing")
	}
	if p.Name == "" {
		p.Name = p.ID
	}
	if p.AuthMethod != "" && p.AuthMethod != authBasic && p.AuthMethod != authPost {
		return fmt.Errorf("token_endpoint_auth_method is %s or %s", authBasic, authPost)
	}
	if utf8.RuneCountInString(p.Name) > 64 || strings.ContainsFunc(p.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return errors.New("name has at most 64 visible characters")
	}
	if err := p.checkIssuer(); err != nil {
		return err
	}
	for name := range p.Parameters {
		if slices.Contains(reserved, name) {
			return fmt.Errorf("parameters must not have %s", name)
		}
	}
	if len(p.Scopes) == 0 {
		p.Scopes = []string{"profile", "offline_access"}
	}
	if p.UsernameClaim == "" {
		p.UsernameClaim = "preferred_username"
	}
	if p.GroupsClaim == "" {
		p.GroupsClaim = "groups"
	}
	return p.readSecrets()
}

func (p *ProviderConfig) checkIssuer() error {
	u, err := url.Parse(p.Issuer)
	switch {
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return fmt.Errorf("issuer %q is not an address such as https://login.example.com", p.Issuer)
	case u.Scheme != "https" && !(u.Scheme == "http" && origin.Loopback(u.Hostname())):
		return fmt.Errorf("issuer %q does not begin with https://", p.Issuer)
	}
	return nil
}

func (p *ProviderConfig) readSecrets() error {
	b, err := setting.ReadFile(p.ClientSecretFile)
	if err != nil {
		return fmt.Errorf("read client_secret_file: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" {
			p.secrets = append(p.secrets, line)
		}
	}
	if len(p.secrets) == 0 {
		return errors.New("client_secret_file is empty")
	}
	for _, s := range p.secrets {
		if len(s) < minSecret {
			return fmt.Errorf("the client secret has less than %d characters: create a longer one at the provider", minSecret)
		}
	}
	return nil
}

// Clients names the issuers and clients, for the comparison between servers.
func (s Settings) Clients() string {
	var parts []string
	for _, p := range s.Providers {
		parts = append(parts, p.ID+" "+p.Issuer+" "+p.ClientID)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// Groups names what the groups permit, for the comparison between servers.
func (s Settings) Groups() string {
	var parts []string
	for _, p := range s.Providers {
		parts = append(parts, fmt.Sprintf("%s %s %q %q", p.ID, p.GroupsClaim, p.AllowedGroups, p.AdminGroups))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
