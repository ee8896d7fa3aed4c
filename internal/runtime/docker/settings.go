package docker

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/runtime/docker/home"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/runtime/docker/tools"
	"codehub/internal/runtime/registry"
	"codehub/internal/workspace/imageref"
)

// Settings are the settings of a Runtime, as codehub serve declares them. Resolve
// computes the values that the runtime uses.
type Settings struct {
	Pids        int64  `name:"workspace-pids" env:"CODEHUB_WORKSPACE_PIDS" default:"4096" help:"Processes and threads a workspace may have (0 = no limit)."`
	Connections uint32 `name:"workspace-connections" env:"CODEHUB_WORKSPACE_CONNECTIONS" default:"4096" help:"Connections and other flows that a workspace may have open to the outside (0 = no limit)."`
	ConnRate    uint32 `name:"workspace-connection-rate" env:"CODEHUB_WORKSPACE_CONNECTION_RATE" default:"200" help:"Connections and other flows that a workspace may open to the outside per second (0 = no limit)."`
	LogSize     string `name:"workspace-log-size" env:"CODEHUB_WORKSPACE_LOG_SIZE" default:"10m" help:"Size at which Docker rotates a container's log."`
	Sudo        bool   `name:"workspace-sudo" env:"CODEHUB_WORKSPACE_SUDO" help:"Let users become root in their workspaces (Docker's default capabilities)."`
	IDEImage    string `name:"ide-image" env:"CODEHUB_IDE_IMAGE" default:"codehub/ide:latest" help:"Image with the IDE of all workspaces whose image does not bring one."`
	Gallery     string `name:"extensions-gallery" env:"CODEHUB_EXTENSIONS_GALLERY" help:"Extension gallery of the IDE, JSON as code-server's EXTENSIONS_GALLERY (default: open-vsx.org)."`
	// ExtensionsDir is read again when its files change.
	ExtensionsDir string        `name:"extensions-dir" env:"CODEHUB_EXTENSIONS_DIR" help:"Folder with .vsix files whose extensions all workspaces have."`
	PullMinRate   string        `name:"pull-min-rate" env:"CODEHUB_PULL_MIN_RATE" default:"64k" help:"Lowest rate of an image pull in bytes per second; a slower pull is cancelled (0 = no minimum)."`
	PullTimeout   time.Duration `name:"pull-timeout" env:"CODEHUB_PULL_TIMEOUT" min:"10s" max:"168h" default:"1h" help:"Longest time that Docker may work on one image pull."`
	// RegistryAuthFile is read again at each pull.
	RegistryAuthFile string `name:"registry-auth-file" env:"CODEHUB_REGISTRY_AUTH_FILE" help:"File with the logins of this server at registries, in the format of Docker's config.json (auths)."`
	// HomeQuota is how homes in folders are limited. With "auto" they have the quotas
	// of btrfs, XFS or ext4 where those are turned on.
	HomeQuota     string `name:"home-quota" env:"CODEHUB_HOME_QUOTA" default:"auto" help:"How the disk space of homes in folders (local-dir) is limited: auto, btrfs, project, image or none."`
	KeepLimits    bool   `name:"keep-kernel-limits" env:"CODEHUB_KEEP_KERNEL_LIMITS" help:"Do not raise the limits of this host's kernel that all workspaces share, such as fs.inotify.max_user_instances."`
	NetworkSubnet string `name:"network-subnet" env:"CODEHUB_NETWORK_SUBNET" help:"IPv4 subnet of the workspaces' network, like 10.213.0.0/24 (default: Docker chooses one)."`
	EgressAllow   string `name:"egress-allow" env:"CODEHUB_EGRESS_ALLOW" help:"Private networks that workspaces may reach, like 10.20.0.0/16,192.168.1.5/32."`
	EgressDeny    string `name:"egress-deny" env:"CODEHUB_EGRESS_DENY" help:"Networks that workspaces must not reach besides private ones, like 203.0.113.0/24."`
	AllowNoWall   bool   `name:"allow-no-wall" env:"CODEHUB_ALLOW_NO_WALL" help:"Start workspaces without network isolation where it cannot be set up. They can then reach this host's services."`

	PullBytesPerSecond int64 `kong:"-"` // of PullMinRate; 0 = no minimum
	LogMaxBytes        int64 `kong:"-"` // of LogSize, per log file; 0 = 10 MiB
	// Subnet is NetworkSubnet; the zero value leaves the choice to Docker. A network
	// that exists keeps its subnet.
	Subnet  netip.Prefix   `kong:"-"`
	Allowed []netip.Prefix `kong:"-"` // of EgressAllow
	Denied  []netip.Prefix `kong:"-"` // of EgressDeny
}

// Resolve checks the settings and computes the values that follow from them. It
// returns the first invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	for _, check := range []func() error{s.egress, s.homeQuota, s.subnet, s.sizes, s.logins, s.gallery, s.ideImage} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// CheckExtensions reads ExtensionsDir; see tools.CheckExtensions.
func (s *Settings) CheckExtensions() error { return tools.CheckExtensions(s.ExtensionsDir) }

func (s *Settings) egress() (err error) {
	if s.Allowed, err = networks("CODEHUB_EGRESS_ALLOW", s.EgressAllow); err != nil {
		return err
	}
	s.Denied, err = networks("CODEHUB_EGRESS_DENY", s.EgressDeny)
	return err
}

func networks(name, list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range strings.Split(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, setting.Invalid(name, fmt.Sprintf("%q is not a network", text), "give networks like 10.0.0.0/8, separated by commas")
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func (s *Settings) homeQuota() error {
	switch s.HomeQuota {
	case "", home.QuotaAuto, home.QuotaNone, string(homequota.Btrfs), string(homequota.Project), string(homequota.Image):
		return nil
	}
	return setting.Invalid("CODEHUB_HOME_QUOTA", fmt.Sprintf("%q is not known", s.HomeQuota), "use auto, btrfs, project, image or none")
}

func (s *Settings) logins() error {
	if s.RegistryAuthFile == "" {
		return nil
	}
	if _, err := registry.ReadLogins(s.RegistryAuthFile); err != nil {
		return setting.Invalid("CODEHUB_REGISTRY_AUTH_FILE", err.Error(), `give a file like {"auths": {"registry.example.com": {"username": "…", "password": "…"}}}`)
	}
	return nil
}

func (s *Settings) ideImage() error {
	if s.IDEImage != "" && !imageref.Valid(s.IDEImage) {
		return setting.Invalid("CODEHUB_IDE_IMAGE", fmt.Sprintf("%q is not an image reference", s.IDEImage), "give one like codehub/ide:latest")
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
	var err error
	if s.LogMaxBytes, err = setting.Bytes(s.LogSize); err != nil || s.LogMaxBytes < 64<<10 {
		return setting.Invalid("CODEHUB_WORKSPACE_LOG_SIZE", fmt.Sprintf("%q is not a size of at least 64k", s.LogSize), "give one like 10m")
	}
	if s.PullBytesPerSecond, err = setting.Bytes(s.PullMinRate); err != nil || s.PullBytesPerSecond > 1<<30 {
		return setting.Invalid("CODEHUB_PULL_MIN_RATE", fmt.Sprintf("%q is not a rate of at most 1g", s.PullMinRate), "give bytes per second like 64k, or 0 for no minimum")
	}
	if s.Pids != 0 && (s.Pids < 32 || s.Pids > 4<<20) {
		return setting.Invalid("CODEHUB_WORKSPACE_PIDS", fmt.Sprintf("%d is too few or too many for an IDE", s.Pids), "give 32 to 4194304, or 0 for no limit")
	}
	if s.Connections != 0 && (s.Connections < 64 || s.Connections > 1e6) {
		return setting.Invalid("CODEHUB_WORKSPACE_CONNECTIONS", fmt.Sprintf("%d is out of bounds", s.Connections), "give 64 to 1000000, or 0 for no limit")
	}
	if s.ConnRate > 1e6 {
		return setting.Invalid("CODEHUB_WORKSPACE_CONNECTION_RATE", fmt.Sprintf("%d is out of bounds", s.ConnRate), "give 1 to 1000000, or 0 for no limit")
	}
	return nil
}
