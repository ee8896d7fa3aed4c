package docker

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"codehub/internal/setting"
)

// Settings are the settings of a Runtime, as codehub serve declares them. Resolve
// computes the values that the runtime uses.
type Settings struct {
	CPUs          string `name:"workspace-cpus" env:"CODEHUB_WORKSPACE_CPUS" default:"2" help:"Cores a workspace may use (0 = no limit)."`
	Memory        string `name:"workspace-memory" env:"CODEHUB_WORKSPACE_MEMORY" default:"4g" help:"Memory a workspace may use, like 512m or 4g (0 = no limit)."`
	Pids          int64  `name:"workspace-pids" env:"CODEHUB_WORKSPACE_PIDS" default:"4096" help:"Processes and threads a workspace may have (0 = no limit)."`
	LogSize       string `name:"workspace-log-size" env:"CODEHUB_WORKSPACE_LOG_SIZE" default:"10m" help:"Size at which Docker rotates a container's log."`
	Sudo          bool   `name:"workspace-sudo" env:"CODEHUB_WORKSPACE_SUDO" help:"Let users become root in their workspaces (Docker's default capabilities)."`
	NetworkSubnet string `name:"network-subnet" env:"CODEHUB_NETWORK_SUBNET" help:"IPv4 subnet of the workspaces' network, like 10.213.0.0/24 (default: Docker chooses one)."`
	EgressDeny    string `name:"egress-deny" env:"CODEHUB_EGRESS_DENY" help:"Further networks that workspaces must not reach, like 10.0.0.0/8,192.168.0.0/16."`
	AllowNoWall   bool   `name:"allow-no-wall" env:"CODEHUB_ALLOW_NO_WALL" help:"Start workspaces without network isolation where it cannot be set up. They can then reach this host's services."`

	NanoCPUs    int64 `kong:"-"` // of CPUs; 0 = no limit
	MemoryBytes int64 `kong:"-"` // of Memory: memory and swap together; 0 = no limit
	LogMaxBytes int64 `kong:"-"` // of LogSize, per log file; 0 = 10 MiB
	// Subnet is NetworkSubnet; the zero value leaves the choice to Docker. A network
	// that exists keeps its subnet.
	Subnet netip.Prefix   `kong:"-"`
	Denied []netip.Prefix `kong:"-"` // of EgressDeny, in addition to the ranges that are always denied
}

// Resolve checks the settings and computes the values that follow from them. It
// returns the first invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	for _, check := range []func() error{s.egress, s.subnet, s.sizes} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) egress() error {
	s.Denied = nil
	for _, text := range strings.Split(s.EgressDeny, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return setting.Invalid("CODEHUB_EGRESS_DENY", fmt.Sprintf("%q is not a network", text), "give networks like 10.0.0.0/8, separated by commas")
		}
		s.Denied = append(s.Denied, p.Masked())
	}
	return nil
}

func (s *Settings) subnet() error {
	if s.NetworkSubnet == "" {
		return nil
	}
	p, err := netip.ParsePrefix(s.NetworkSubnet)
	if err != nil || !p.Addr().Is4() || p != p.Masked() || p.Bits() < 8 || p.Bits() > 28 {
		return setting.Invalid("CODEHUB_NETWORK_SUBNET", fmt.Sprintf("%q is not an IPv4 network of /8 to /28", s.NetworkSubnet), "give one that is not in use, like 10.213.0.0/24")
	}
	s.Subnet = p
	return nil
}

func (s *Settings) sizes() error {
	cpus, err := strconv.ParseFloat(s.CPUs, 64)
	if err != nil || !(cpus >= 0 && cpus <= 4096) {
		return setting.Invalid("CODEHUB_WORKSPACE_CPUS", fmt.Sprintf("%q is not a number of cores", s.CPUs), "give one like 2 or 0.5, or 0 for no limit")
	}
	s.NanoCPUs = int64(cpus * 1e9)
	if s.MemoryBytes, err = parseBytes(s.Memory); err != nil || (s.MemoryBytes != 0 && s.MemoryBytes < 64<<20) {
		return setting.Invalid("CODEHUB_WORKSPACE_MEMORY", fmt.Sprintf("%q is not a size of at least 64m", s.Memory), "give one like 512m or 4g, or 0 for no limit")
	}
	if s.LogMaxBytes, err = parseBytes(s.LogSize); err != nil || s.LogMaxBytes < 64<<10 {
		return setting.Invalid("CODEHUB_WORKSPACE_LOG_SIZE", fmt.Sprintf("%q is not a size of at least 64k", s.LogSize), "give one like 10m")
	}
	if s.Pids != 0 && (s.Pids < 32 || s.Pids > 4<<20) {
		return setting.Invalid("CODEHUB_WORKSPACE_PIDS", fmt.Sprintf("%d is too few or too many for an IDE", s.Pids), "give 32 to 4194304, or 0 for no limit")
	}
	return nil
}

func parseBytes(s string) (int64, error) {
	s = strings.ToLower(strings.TrimSpace(s))
	unit := int64(1)
	if n := len(s); n > 1 {
		switch s[n-1] {
		case 'k':
			unit = 1 << 10
		case 'm':
			unit = 1 << 20
		case 'g':
			unit = 1 << 30
		}
		if unit > 1 {
			s = s[:n-1]
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 || v > (1<<62)/unit {
		return 0, fmt.Errorf("not a size")
	}
	return v * unit, nil
}
