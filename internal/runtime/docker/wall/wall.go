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
	Deny   []netip.Prefix `json:"deny,omitempty"` // denied in addition to the default ranges

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

// linkLocal is always denied: 169.254.169.254 and similar addresses give the
// machine's credentials to any client.
var linkLocal = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),
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

// denied returns all denied ranges without duplicates.
func (s Spec) denied() []netip.Prefix {
	out := slices.Clone(linkLocal)
	for _, p := range s.Deny {
		if p = p.Masked(); p.IsValid() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
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
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

func nameservers(r io.Reader) []netip.Addr {
	var out []netip.Addr
	for sc := bufio.NewScanner(r); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil && !a.IsLoopback() {
			out = append(out, a.WithZone("").Unmap())
		}
	}
	return out
}
