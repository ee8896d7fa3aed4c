package front

import (
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"codehub/internal/base/setting"
)

// Settings are the settings of the listener, as codehub serve declares them. Resolve
// computes the derived values.
type Settings struct {
	TrustedProxies string `name:"trusted-proxies" env:"CODEHUB_TRUSTED_PROXIES" help:"Addresses and networks of reverse proxies whose X-Forwarded-For, -Proto and -Host count, like 127.0.0.1,10.0.5.0/24 (default: none)."`
	ProxyProtocol  bool   `name:"proxy-protocol" env:"CODEHUB_PROXY_PROTOCOL" help:"Connections from --trusted-proxies begin with a PROXY protocol header (v1 or v2)."`

	Cert           string        `name:"tls-cert" env:"CODEHUB_TLS_CERT" help:"File with the TLS certificate and its chain, in PEM. It is read again when it changes (default: codehub serves plain http)."`
	Key            string        `name:"tls-key" env:"CODEHUB_TLS_KEY" help:"File with the private key of --tls-cert, in PEM."`
	ReloadInterval time.Duration `name:"tls-reload-interval" env:"CODEHUB_TLS_RELOAD_INTERVAL" min:"100ms" max:"1h" default:"10s" help:"Time between two looks at the files of the certificate."`
	MinVersion     string        `name:"tls-min-version" env:"CODEHUB_TLS_MIN_VERSION" default:"1.2" help:"Lowest version of TLS: 1.2 or 1.3."`
	RedirectListen string        `name:"redirect-listen" env:"CODEHUB_REDIRECT_LISTEN" help:"Address of a plain http listener that redirects to https, like 0.0.0.0:80 (default: none)."`

	ACME            bool          `name:"acme" env:"CODEHUB_ACME" help:"Obtain TLS certificates from an ACME authority, whose terms you thereby accept."`
	ACMEDirectory   string        `name:"acme-directory" env:"CODEHUB_ACME_DIRECTORY" default:"https://acme-v02.api.letsencrypt.org/directory" help:"Directory URL of the ACME authority."`
	ACMEEmail       string        `name:"acme-email" env:"CODEHUB_ACME_EMAIL" help:"Mail address for the account at the ACME authority (default: none)."`
	ACMERoots       string        `name:"acme-roots" env:"CODEHUB_ACME_ROOTS" help:"File with the certificates that the ACME authority's own https is trusted by (default: those of the system)."`
	ACMEHook        string        `name:"acme-dns-hook" env:"CODEHUB_ACME_DNS_HOOK" help:"Program that creates and removes the TXT records of DNS-01 challenges, which wildcards need."`
	ACMEHookTimeout time.Duration `name:"acme-dns-timeout" env:"CODEHUB_ACME_DNS_TIMEOUT" min:"1s" max:"1h" default:"2m" help:"How long a call of --acme-dns-hook may take."`
	ACMEHookWait    time.Duration `name:"acme-dns-wait" env:"CODEHUB_ACME_DNS_WAIT" min:"0s" max:"1h" default:"30s" help:"Time between the creation of a TXT record and its check by the ACME authority."`

	Proxies Proxies `kong:"-"` // of TrustedProxies
	// ACMEFolder keeps the account and the certificates of ACME.
	ACMEFolder string `kong:"-"`
}

// Resolve checks the settings. It returns the first invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	var err error
	if s.Proxies, err = parseProxies(s.TrustedProxies); err != nil {
		return setting.Invalid("CODEHUB_TRUSTED_PROXIES", err.Error(), "give the addresses of the proxies, like 127.0.0.1,10.0.5.0/24")
	}
	if s.ProxyProtocol && len(s.Proxies) == 0 {
		return setting.Invalid("CODEHUB_PROXY_PROTOCOL", "it needs the addresses of the proxies that send the header", "set CODEHUB_TRUSTED_PROXIES")
	}
	return s.secure()
}

// TLS reports whether codehub itself serves https.
func (s *Settings) TLS() bool { return s.Cert != "" || s.Key != "" || s.ACME }

func (s *Settings) secure() error {
	switch {
	case s.Cert != "" && s.Key == "":
		return setting.Invalid(keySetting, "it is not set, and "+certSetting+" is", "name the file with the certificate's private key")
	case s.Cert == "" && s.Key != "":
		return setting.Invalid(certSetting, "it is not set, and "+keySetting+" is", "name the file with the certificate and its chain")
	case s.MinVersion != "1.2" && s.MinVersion != "1.3":
		return setting.Invalid("CODEHUB_TLS_MIN_VERSION", fmt.Sprintf("%q is not known", s.MinVersion), "use 1.2 or 1.3")
	}
	if err := s.acme(); err != nil || s.RedirectListen == "" {
		return err
	}
	if _, _, err := net.SplitHostPort(s.RedirectListen); err != nil {
		return setting.Invalid("CODEHUB_REDIRECT_LISTEN", fmt.Sprintf("%q is not an address to listen on", s.RedirectListen), "give host:port, like 0.0.0.0:80")
	}
	return nil
}

func (s *Settings) acme() error {
	switch {
	case s.ACMEHook != "" && !s.ACME:
		return setting.Invalid("CODEHUB_ACME_DNS_HOOK", "it is only used with ACME", "set CODEHUB_ACME=true, or leave it unset")
	case !s.ACME:
		return nil
	case s.Cert != "":
		return setting.Invalid("CODEHUB_ACME", "the certificate of "+certSetting+" would not be used", "set one of both")
	case s.ACMEHook == "" && s.RedirectListen == "":
		return setting.Invalid("CODEHUB_ACME", "the authority could not reach codehub", "set CODEHUB_REDIRECT_LISTEN to an address that is reached on port 80, like 0.0.0.0:80, or CODEHUB_ACME_DNS_HOOK")
	}
	if u, err := url.Parse(s.ACMEDirectory); err != nil || u.Scheme != "https" || u.Host == "" {
		return setting.Invalid("CODEHUB_ACME_DIRECTORY", fmt.Sprintf("%q is not an https URL", s.ACMEDirectory), "give the directory URL of the authority")
	}
	if s.ACMEEmail != "" {
		if a, err := mail.ParseAddress(s.ACMEEmail); err != nil || a.Address != s.ACMEEmail {
			return setting.Invalid("CODEHUB_ACME_EMAIL", fmt.Sprintf("%q is not a mail address", s.ACMEEmail), "give one like admin@example.com, or leave it unset")
		}
	}
	return nil
}

// Check checks the settings against CODEHUB_URL, after Resolve. names are the hosts that
// users open, with * for any label.
func (s *Settings) Check(public *url.URL, names []string) error {
	if public.Scheme == "https" {
		return s.checkNames(names)
	}
	const do = "give CODEHUB_URL the https address that users open"
	switch {
	case s.TLS():
		return setting.Invalid("CODEHUB_URL", fmt.Sprintf("it is %s, and codehub itself serves https", public), do)
	case s.RedirectListen != "":
		return setting.Invalid("CODEHUB_REDIRECT_LISTEN", "there is no https to redirect to: CODEHUB_URL is "+public.String(), do)
	}
	return nil
}

func (s *Settings) checkNames(names []string) error {
	if !s.ACME {
		return nil
	}
	for _, name := range names {
		if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") || strings.HasSuffix(name, ".localhost") {
			return setting.Invalid("CODEHUB_ACME", "no authority certifies "+name, "give CODEHUB_URL a domain, or use "+certSetting)
		}
		if strings.HasPrefix(name, "*.") && s.ACMEHook == "" {
			return setting.Invalid("CODEHUB_ACME_DNS_HOOK", "it is not set, and authorities certify "+name+" by DNS only", "name a program that creates TXT records, or use "+certSetting)
		}
	}
	return nil
}

// Proxies are the networks of the reverse proxies that codehub trusts.
type Proxies []netip.Prefix

// Contain reports whether a is the address of a trusted proxy.
func (p Proxies) Contain(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, network := range p {
		if network.Contains(a) {
			return true
		}
	}
	return false
}

func parseProxies(list string) (Proxies, error) {
	var p Proxies
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		network, err := parseNetwork(text)
		if err != nil {
			return nil, err
		}
		p = append(p, network)
	}
	return p, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%.100q is neither an address nor a network", text)
	}
	if network.Addr().Is4In6() {
		if network.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q is not a network of one family", text)
		}
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
	}
	if network.Bits() == 0 {
		return netip.Prefix{}, fmt.Errorf("%q trusts every client, and each could forge its address", text)
	}
	return network.Masked(), nil
}
