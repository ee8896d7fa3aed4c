// Package wall implements the network isolation of workspaces from Docker's host
// and from each other: one nftables table for one bridge, independent of Docker's
// own rules.
package wall

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Spec describes the wall of one bridge.
type Spec struct {
	Table  string         `json:"table"`          // the table, used only for this wall
	Bridge string         `json:"bridge"`         // the interface
	Deny   []netip.Prefix `json:"deny,omitempty"` // always denied, in addition to metadata

	// Close and Open are networks that are denied and allowed. The smallest network that
	// an address is in decides, and of two equal ones that of Close. Private networks are
	// closed by default.
	Close []netip.Prefix `json:"close,omitempty"`
	Open  []netip.Prefix `json:"open,omitempty"`

	// Nameservers may be reached on port 53 in any network: Docker resolves names
	// for a container from the container's own network.
	Nameservers []netip.Addr `json:"nameservers,omitempty"`

	// Flows is how many flows that a workspace opened the host may track at once, and
	// Rate how many it may open per second; 0: no limit. Both are needed: a closed TCP
	// connection is not counted, although the host tracks it for another two minutes.
	Flows uint32 `json:"flows,omitempty"`
	Rate  uint32 `json:"rate,omitempty"`

	// Outward are the bridges with an uplink. All others are private networks of
	// this host and are denied.
	Outward []string `json:"outward,omitempty"`
}

// metadata is always denied: clouds give the machine's credentials to any client
// there. The Helm chart has the same IPv4 networks.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"), // link-local: most clouds
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle Cloud Classic
}

// private are the networks that are closed unless Open has them. The Helm chart has
// the same IPv4 networks.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT, also within clouds
	netip.MustParsePrefix("fc00::/7"),
}

// ParseSpec parses the output of Encode.
func ParseSpec(text string) (Spec, error) {
	var s Spec
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, fmt.Errorf("parse the wall spec: %w", err)
	}
	return s, s.validate()
}

// Encode returns the spec as text for ParseSpec.
func (s Spec) Encode() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the wall spec: %w", err)
	}
	return string(text), nil
}

func (s Spec) validate() error {
	if s.Table == "" || s.Bridge == "" || len(s.Bridge) > 15 {
		return fmt.Errorf("the wall spec has no table or interface: %q, %q", s.Table, s.Bridge)
	}
	return nil
}

// scope is a network that is denied, or open.
type scope struct {
	prefix netip.Prefix
	open   bool
}

// scopes returns all networks that are denied or allowed, without duplicates, in an
// order in which the first that has an address decides.
func (s Spec) scopes() []scope {
	var out []scope
	add := func(list []netip.Prefix, open bool) {
		for _, p := range list {
			p = p.Masked()
			if p.IsValid() && !slices.ContainsFunc(out, func(r scope) bool { return r.prefix == p }) {
				out = append(out, scope{p, open})
			}
		}
	}
	add(metadata, false)
	add(s.Deny, false)
	always := len(out)
	add(s.Close, false)
	add(s.Open, true)
	add(private, false)
	slices.SortStableFunc(out[always:], func(a, b scope) int { return b.prefix.Bits() - a.prefix.Bits() })
	return out
}

// withHostState returns the spec with this host's name servers and bridges with an
// uplink.
func (s Spec) withHostState() (Spec, error) {
	ns, err := hostNameservers()
	if err != nil {
		return s, err
	}
	s.Nameservers = append(slices.Clone(s.Nameservers), ns...)
	outward, err := uplinkBridges()
	if err != nil {
		return s, err
	}
	s.Outward = append(slices.Clone(s.Outward), outward...)
	return s, s.validate()
}

// hostNameservers reads the name servers that Docker passes to containers. Docker
// itself queries those on loopback from the host.
func hostNameservers() ([]netip.Addr, error) {
	var out []netip.Addr
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		f, err := os.Open(path)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read nameservers: %w", err)
		}
		out = append(out, nameservers(f)...)
		f.Close()
	}
	raw, err := os.ReadFile("/etc/docker/daemon.json")
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("read nameservers: %w", err)
	}
	out = append(out, dockerNameservers(raw)...)
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

func nameservers(r io.Reader) []netip.Addr {
	var list []string
	for sc := bufio.NewScanner(r); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) >= 2 && fields[0] == "nameserver" {
			list = append(list, fields[1])
		}
	}
	return beyondLoopback(list)
}

// dockerNameservers returns those that Docker's configuration has in place of the host's.
func dockerNameservers(config []byte) []netip.Addr {
	var docker struct {
		DNS []string `json:"dns"`
	}
	_ = json.Unmarshal(config, &docker) // Docker does not start with an invalid one
	return beyondLoopback(docker.DNS)
}

func beyondLoopback(list []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range list {
		if a, err := netip.ParseAddr(text); err == nil && !a.IsLoopback() {
			out = append(out, a.WithZone("").Unmap())
		}
	}
	return out
}
