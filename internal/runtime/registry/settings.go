package registry

import (
	"fmt"
	"slices"
	"strings"

	"codehub/internal/base/setting"
	"codehub/internal/workspace/imageref"
)

// Settings say how a server reaches registries itself, as codehub serve declares them.
type Settings struct {
	PlainList   string `name:"plain-registries" env:"CODEHUB_PLAIN_REGISTRIES" help:"Registries that this server itself asks without TLS, like 10.0.0.5:5000, separated by commas."`
	PrivateList string `name:"private-registries" env:"CODEHUB_PRIVATE_REGISTRIES" help:"Registries at private addresses that this server itself may ask, like registry.example.com, separated by commas."`

	Plain   []string `kong:"-"` // of PlainList
	Private []string `kong:"-"` // of both
}

// Resolve checks the settings and computes the values that follow from them. It returns the first
// invalid one as *setting.Problem.
func (s *Settings) Resolve() (err error) {
	if s.Plain, err = hosts("CODEHUB_PLAIN_REGISTRIES", s.PlainList); err != nil {
		return err
	}
	private, err := hosts("CODEHUB_PRIVATE_REGISTRIES", s.PrivateList)
	s.Private = slices.Concat(s.Plain, private)
	return err
}

// Client returns a client for registries that users name: it reaches no private addresses
// except those of Private.
func (s Settings) Client() Client { return Client{Plain: s.Plain, HTTP: Public(s.Private)} }

func hosts(name, text string) (out []string, err error) {
	for host := range strings.SplitSeq(text, ",") {
		if host = strings.TrimSpace(host); host == "" {
			continue
		}
		if imageref.Registry(host+"/image") != strings.ToLower(host) {
			return nil, setting.Invalid(name, fmt.Sprintf("%q is not a registry", host), "give hosts like registry.example.com or 10.0.0.5:5000, separated by commas")
		}
		out = append(out, strings.ToLower(host))
	}
	return out, nil
}
