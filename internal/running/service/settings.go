package service

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Settings are the server's settings that both the API and the dashboard use.
type Settings struct {
	URL     *url.URL // CODEHUB_URL, the server's own address
	Version string   // of the server
	Defaults
	Idle
	DeleteGrace time.Duration // how long a deletion can be undone
	SSH         SSHServer
}

// SSHServer is how SSH clients reach the server and know it.
type SSHServer struct {
	Host        string // of the listener; empty: there is none
	Port        int
	HostKey     string // as in authorized_keys
	Fingerprint string // of HostKey
}

// Command returns the command that opens a shell in a workspace; "" without a
// listener.
func (s SSHServer) Command(w workspace.Workspace) string {
	if s.Host == "" {
		return ""
	}
	name := w.Name
	if !PlainName(name) {
		name = string(w.ID)
	}
	if s.Port == 22 {
		return "ssh " + name + "@" + s.Host
	}
	return fmt.Sprintf("ssh -p %d %s@%s", s.Port, name, s.Host)
}

// PlainName reports whether SSH clients and shells take a workspace's name as it is.
// For others there is the id.
func PlainName(name string) bool {
	return name != "" && len(name) <= 63 && name[0] != '-' && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

// Defaults are the settings of new workspaces, as codehub serve declares them.
type Defaults struct {
	DefaultImage   string `name:"default-image" env:"CODEHUB_DEFAULT_IMAGE" default:"codehub/workspace:latest" help:"Image of workspaces that do not name one."`
	AllowedImages  string `name:"allowed-images" env:"CODEHUB_ALLOWED_IMAGES" help:"Patterns of the images that workspaces may use, separated by commas, like python,registry.example.com/team/* (default: every image)."`
	CPUs           string `name:"workspace-cpus" env:"CODEHUB_WORKSPACE_CPUS" default:"2" help:"Cores that a workspace of the default size may use (0 = no limit)."`
	Memory         string `name:"workspace-memory" env:"CODEHUB_WORKSPACE_MEMORY" default:"4g" help:"Memory that a workspace of the default size may use, like 512m or 4g (0 = no limit)."`
	Disk           string `name:"workspace-disk" env:"CODEHUB_WORKSPACE_DISK" help:"Disk space that the home of a workspace may use, like 20g, unless its size has another one; 0 = no limit (default: no limit, in Kubernetes CODEHUB_HOME_SIZE)."`
	OfferedSizes   string `name:"sizes" env:"CODEHUB_SIZES" help:"Sizes that users may choose for a workspace in place of the default one: NAME=CORES:MEMORY or NAME=CORES:MEMORY:DISK, separated by commas, like small=1:2g,large=4:8g:50g."`
	StorageBackend string `name:"storage" env:"CODEHUB_STORAGE" default:"docker-volume" help:"Where new homes are with Docker: docker-volume, or local-dir (folders in the data folder)."`

	Images imageref.Allowed `kong:"-"` // of AllowedImages; always allows the default image
	Sizes  workspace.Sizes  `kong:"-"` // of CPUs, Memory, Disk and OfferedSizes
}

// Resolve checks the settings. It returns the first invalid one as *setting.Problem.
func (d *Defaults) Resolve() error {
	switch d.StorageBackend {
	case workspace.StorageDockerVolume, workspace.StorageLocalDir, workspace.StorageKubernetes:
	default:
		return setting.Invalid("CODEHUB_STORAGE", fmt.Sprintf("%q is not known", d.StorageBackend), "use docker-volume or local-dir")
	}
	if !imageref.Valid(d.DefaultImage) {
		return setting.Invalid("CODEHUB_DEFAULT_IMAGE", fmt.Sprintf("%q is not an image reference", d.DefaultImage), "give one like codehub/workspace:latest")
	}
	var err error
	if d.Images, err = imageref.ParseAllowed(d.AllowedImages, d.DefaultImage); err != nil {
		return setting.Invalid("CODEHUB_ALLOWED_IMAGES", err.Error(), "give patterns like python:3.*, company/* or registry.example.com/**, separated by commas")
	}
	return d.sizes()
}

// Idle are the idle timeouts of workspaces that do not set their own, and the bound of
// keep-awake, as codehub serve declares them.
type Idle struct {
	StandbyTTL   int           `name:"ttl-standby-seconds" env:"CODEHUB_TTL_STANDBY_SECONDS,TTL_STANDBY_SECONDS" default:"10800" help:"Idle timeout: seconds until a workspace stops (0 = never)."`
	ArchiveTTL   int           `name:"ttl-archive-seconds" env:"CODEHUB_TTL_ARCHIVE_SECONDS,TTL_ARCHIVE_SECONDS" default:"86400" help:"Seconds until a stopped workspace is archived (0 = never)."`
	KeepAwakeMax time.Duration `name:"keep-awake-max" env:"CODEHUB_KEEP_AWAKE_MAX" min:"1m" max:"87600h" default:"24h" help:"Longest time for which users may keep a workspace awake."`
}

// TTL returns the idle timeouts.
func (i Idle) TTL() workspace.TTL {
	return workspace.TTL{Standby: time.Duration(i.StandbyTTL) * time.Second, Archive: time.Duration(i.ArchiveTTL) * time.Second}
}

// Resolve checks the settings. It returns the first invalid one as *setting.Problem.
func (i *Idle) Resolve() error {
	for _, ttl := range []struct {
		name string
		v    int
	}{{"TTL_STANDBY_SECONDS", i.StandbyTTL}, {"TTL_ARCHIVE_SECONDS", i.ArchiveTTL}} {
		if ttl.v < 0 || ttl.v > workspace.MaxTTL {
			return setting.Invalid(ttl.name, fmt.Sprintf("%d is out of bounds", ttl.v), fmt.Sprintf("give a number of seconds up to %d, or 0 for never", workspace.MaxTTL))
		}
	}
	return nil
}
