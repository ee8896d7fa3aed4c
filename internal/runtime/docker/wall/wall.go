// Package wall keeps workspaces from the engine's host and from each other: one
// nftables table, beside the engine's own rules, for one bridge (design §11).
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
	Table  string         `json:"table"`          // the table's name, this wall's own
	Bridge string         `json:"bridge"`         // the interface
	Deny   []netip.Prefix `json:"deny,omitempty"` // out of reach beside what always is

	// Nameservers are asked on port 53 wherever they are: the engine resolves
	// names for a container from the container's own network.
	Nameservers []netip.Addr `json:"nameservers,omitempty"`

	// Outward are the bridges that lead outside; every other one is a private
	// network of this host, and out of reach.
	Outward []string `json:"outward,omitempty"`
}

// linkLocal is out of reach always: 169.254.169.254 and its kin hand the
// machine's credentials to whoever asks.
var linkLocal = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),
}

// ParseSpec reads what Encode wrote.
func ParseSpec(text string) (Spec, error) {
	var s Spec
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, fmt.Errorf("read the wall's description: %w", err)
	}
	return s, s.validate()
}

// Encode writes the spec for ParseSpec.
func (s Spec) Encode() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("write the wall's description: %w", err)
	}
	return string(text), nil
}

func (s Spec) validate() error {
	if s.Table == "" || s.Bridge == "" || len(s.Bridge) > 15 {
		return fmt.Errorf("the wall's description lacks a table or an interface: %q, %q", s.Table, s.Bridge)
	}
	return nil
}

// denied returns all ranges that are out of reach, each once.
func (s Spec) denied() []netip.Prefix {
	out := slices.Clone(linkLocal)
	for _, p := range s.Deny {
		if p = p.Masked(); p.IsValid() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// onThisHost returns the spec with what is particular to this host: its
// nameservers, and which of its bridges lead outside.
func (s Spec) onThisHost() (Spec, error) {
	ns, err := hostNameservers()
	if err != nil {
		return s, err
	}
	s.Nameservers = append(slices.Clone(s.Nameservers), ns...)
	outward, err := outwardBridges()
	if err != nil {
		return s, err
	}
	s.Outward = append(slices.Clone(s.Outward), outward...)
	return s, s.validate()
}

// hostNameservers reads the nameservers that the engine hands on to containers.
// Those on loopback it asks itself, from the host.
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
