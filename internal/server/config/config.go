// Package config holds codehub's settings (docs/settings.md): environment variables
// and flags of the same names. An invalid value is an error with the setting, the
// reason and a value that works.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/internal/base/ballast"
	"codehub/internal/base/memlimit"
	"codehub/internal/base/setting"
	"codehub/internal/base/trust"
	"codehub/internal/bus/activity"
	"codehub/internal/bus/redisbus"
	"codehub/internal/control/backup"
	"codehub/internal/control/gc"
	"codehub/internal/control/homebackup"
	"codehub/internal/control/reconcile"
	"codehub/internal/gateway/front"
	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/origin"
	"codehub/internal/postgres"
	"codehub/internal/running/devcontainers"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/running/ttl"
	"codehub/internal/runtime/docker"
	"codehub/internal/runtime/kube"
	"codehub/internal/runtime/registry"
	"codehub/internal/storage/bucket"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitapps"
	"codehub/internal/users/sealed"
	"codehub/internal/users/signin"
	"codehub/internal/web/proxy"
	"codehub/internal/web/sshgate"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Docker and Kubernetes are the values of Config.Runtime.
const (
	Docker     = "docker"
	Kubernetes = "kubernetes"
)

// Config is every setting of `codehub serve`. Its own fields are the settings of the
// server and those that several packages use. Call Resolve before use.
type Config struct {
	Listen        string `name:"listen" env:"CODEHUB_LISTEN" default:"127.0.0.1:8080" help:"Address to serve on."`
	MetricsListen string `name:"metrics-listen" env:"CODEHUB_METRICS_LISTEN" help:"Address to serve /metrics on, instead of that of --listen."`
	URL           string `name:"url" env:"CODEHUB_URL" help:"Address that users open (default: http://codehub.localhost with the port of --listen)."`
	WorkspaceURL  string `name:"workspace-url" env:"CODEHUB_WORKSPACE_URL" help:"Addresses of workspaces: a pattern such as https://*.ws.example.com, or path to share the address of --url (default: http://*.localhost with the port of --url, if that is localhost)."`
	AllowHTTP     bool   `name:"allow-http" env:"CODEHUB_ALLOW_HTTP" help:"Serve plain http at an address of the network, where others can read and change everything, or several accounts on localhost, where forwarded ports of workspaces can take over sessions."`
	AdminPassword string `name:"admin-password" env:"CODEHUB_ADMIN_PASSWORD" secret:"" help:"Password of the user admin, which the first start creates. Without it a setup page creates the first user."`
	DataDir       string `name:"data-dir" env:"CODEHUB_DATA_DIR" help:"Folder for the embedded database, archives and local homes."`
	DatabaseURL   string `name:"database-url" env:"CODEHUB_DATABASE_URL" secret:"" help:"PostgreSQL to use instead of the embedded one."`
	RedisURL      string `name:"redis-url" env:"CODEHUB_REDIS_URL" secret:"" help:"Redis between several servers: redis://[user:password@]host:port/db, or rediss:// (default: none; one server needs none)."`
	ArchiveURL    string `name:"archive-url" env:"CODEHUB_ARCHIVE_URL" help:"Where archives are kept: file:///folder, or s3://bucket/prefix?endpoint=https://host&region=…&path-style=true (default: the folder archives in the data folder)."`

	CAFile string `name:"ca-file" env:"CODEHUB_CA_FILE" help:"File with certificates in PEM of further authorities, such as your company's, that the server and all workspaces trust."`

	ClientDir   string           `name:"client-dir" env:"CODEHUB_CLIENT_DIR" help:"Folder with the clients for all systems, which users download from /bin/ (default: ../share/codehub/clients next to the program's folder)."`
	BuildImages string           `name:"build-images" env:"CODEHUB_BUILD_IMAGES" help:"Program that makes the images of workspaces while the server serves, such as images/build.sh (default: none)."`
	Runtime     string           `name:"runtime" env:"CODEHUB_RUNTIME" default:"docker" help:"What runs the containers: docker or kubernetes."`
	Defaults    service.Defaults `embed:""`
	HostDataDir string           `name:"host-data-dir" env:"CODEHUB_HOST_DATA_DIR" help:"Path of the data folder on Docker's host, if codehub itself runs in a container."`

	// Groups, each passed whole to the package that declares, checks and uses it. The
	// help lists settings in this order.
	Front         front.Settings         `embed:""`
	Docker        docker.Settings        `embed:""`
	Cluster       kube.Settings          `embed:""` // only for Kubernetes
	Registries    registry.Settings      `embed:""`
	Devcontainers devcontainers.Settings `embed:""`
	Limits        postgres.Limits        `embed:""`
	Logins        auth.Settings          `embed:""`
	SignIn        signin.Settings        `embed:""`
	Sealed        sealed.Settings        `embed:""`
	Git           gitapps.Settings       `embed:""`
	Templates     templates.Settings     `embed:""`
	Inbound       inbound.Settings       `embed:""`
	Proxy         proxy.Settings         `embed:""`
	SSH           sshgate.Settings       `embed:""`
	Retention     gc.Settings            `embed:""`
	Bucket        bucket.Settings        `embed:""`
	Ballast       ballast.Settings       `embed:""`
	Lifecycle     lifecycle.Settings     `embed:""`
	Idle          service.Idle           `embed:""`
	Redis         redisbus.Settings      `embed:""`
	Audit         postgres.AuditSettings `embed:""`
	Usage         postgres.UsageSettings `embed:""`

	Memory memlimit.Settings `embed:""`

	ShutdownTimeout time.Duration `name:"shutdown-timeout" env:"CODEHUB_SHUTDOWN_TIMEOUT" min:"1s" max:"1h" default:"15s" help:"How long a shutdown waits for running requests."`
	LogFormat       string        `name:"log-format" env:"CODEHUB_LOG_FORMAT" default:"text" help:"Format of the log: text or json."`
	LogLevel        string        `name:"log-level" env:"CODEHUB_LOG_LEVEL" default:"info" help:"Lowest level that is logged: debug, info, warn or error."`

	Reconcile reconcile.Settings `embed:""`
	TTL       ttl.Settings       `embed:""`
	Activity  activity.Settings  `embed:""`
	GC        gc.Schedule        `embed:""`
	Backups   backup.Schedule    `embed:""`

	HomeBackups homebackup.Schedule `embed:""`

	Version string `kong:"-"` // of this program

	// Computed by Resolve.
	PublicURL *url.URL      `kong:"-"`
	Layout    origin.Layout `kong:"-"` // of URL and WorkspaceURL
	Archives  *url.URL      `kong:"-"` // of ArchiveURL

	Authorities []byte `kong:"-"` // of CAFile; empty: none
}

// AfterApply takes the program's version.
func (c *Config) AfterApply(vars kong.Vars) error {
	c.Version = vars["codehub_version"]
	return nil
}

// Resolve checks every setting and computes the values that follow from them. It
// returns the first invalid one as *setting.Problem. With CAFile, this process trusts
// its authorities from then on.
func (c *Config) Resolve() error {
	for _, check := range []func() error{
		c.authorities,
		c.Front.Resolve, c.addresses, c.secure, c.folders, c.database, c.redis, c.Redis.Resolve, c.archives, c.Bucket.Resolve, c.Ballast.Resolve,
		c.backends, c.Defaults.Resolve, c.sizes, c.Docker.Resolve, c.SSH.Resolve, c.Idle.Resolve, c.bounds, c.Reconcile.Resolve, c.Memory.Resolve, c.Proxy.Ports.Resolve, c.Limits.Resolve, c.Audit.Resolve, c.cluster, c.logging,
		c.Registries.Resolve, c.SignIn.Resolve, c.logins, c.Sealed.Resolve, c.Git.Resolve, c.Templates.Resolve, c.HomeBackups.Resolve,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) authorities() (err error) {
	if c.CAFile == "" {
		return nil
	}
	if c.CAFile, err = filepath.Abs(c.CAFile); err == nil {
		c.Authorities, err = trust.Read(c.CAFile)
	}
	if err == nil {
		err = trust.Install(c.Authorities)
	}
	if err != nil {
		return setting.Invalid("CODEHUB_CA_FILE", err.Error(), "name a file with the certificates of authorities in PEM")
	}
	return nil
}

// sizes records whether homes are measured with the limits that depend on it.
func (c *Config) sizes() error {
	c.Defaults.Sizes.Unmeasured = c.Usage.SizeInterval <= 0
	return nil
}

// listening checks an address to listen on, and returns its port.
func listening(name, address, example string) (port string, err error) {
	host, port, err := net.SplitHostPort(address)
	if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 0 || n > 65535 {
		return "", setting.Invalid(name, fmt.Sprintf("%q is not an address to listen on", address), "give host:port with a port from 0 to 65535, like 127.0.0.1:"+example)
	}
	if host != "" && host != "localhost" && net.ParseIP(host) == nil {
		return "", setting.Invalid(name, fmt.Sprintf("%q is neither an IP address nor localhost", host), "give an address of this machine, like 127.0.0.1:"+example+" or 0.0.0.0:"+example)
	}
	return port, nil
}

func (c *Config) addresses() error {
	port, err := listening("CODEHUB_LISTEN", c.Listen, "8080")
	if err != nil {
		return err
	}
	if c.MetricsListen != "" {
		if _, err := listening("CODEHUB_METRICS_LISTEN", c.MetricsListen, "9090"); err != nil {
			return err
		}
	}
	if c.URL == "" {
		c.URL = "http://" + origin.LocalHost + ":" + port
		if c.Front.TLS() {
			c.URL = "https://localhost:" + port
		}
	}
	u, err := parseOrigin(c.URL)
	if err != nil {
		return setting.Invalid("CODEHUB_URL", err.Error(), "give the address that users open, like https://code.example.com")
	}
	if host := u.Hostname(); u.Scheme == "http" && (host == "localhost" || host == "127.0.0.1" || host == "::1") {
		port := u.Port()
		if u.Host = origin.LocalHost; port != "" {
			u.Host += ":" + port
		}
	}
	c.PublicURL = u
	if u.Scheme == "http" && !origin.Loopback(u.Hostname()) && !c.AllowHTTP {
		return setting.Invalid("CODEHUB_URL", u.String()+" is plain http, so that others in the network can read passwords and take over sessions",
			"use https, or set CODEHUB_ALLOW_HTTP=true if you trust the network")
	}
	c.Layout, err = origin.Parse(u, c.WorkspaceURL)
	var e *origin.Error
	if errors.As(err, &e) {
		return setting.Invalid("CODEHUB_WORKSPACE_URL", e.Why, e.Do)
	}
	return err
}

// OneAccount reports whether only one account may log in: other ports of this machine receive the
// cookies of codehub's host, those of https too.
func (c *Config) OneAccount() bool {
	return origin.Loopback(c.PublicURL.Hostname()) && !c.AllowHTTP
}

// secure checks the settings of https against the addresses.
func (c *Config) secure() error { return c.Front.Check(c.PublicURL, c.Hosts()) }

// Hosts lists the hosts that users open, with * for any label.
func (c *Config) Hosts() []string {
	hosts := []string{c.PublicURL.Hostname()}
	if u, err := url.Parse(c.Layout.Pattern()); err == nil && u.Host != "" {
		_, domain, _ := strings.Cut(u.Hostname(), ".")
		hosts = append(hosts, "*."+domain)
	}
	return hosts
}

func parseOrigin(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is not a URL", s)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q does not begin with http:// or https://", s)
	case u.Hostname() == "" || u.User != nil:
		return nil, fmt.Errorf("%q needs a host and no user", s)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q has more than a host: codehub needs an origin of its own", s)
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("%q has no port from 1 to 65535", s)
		}
	}
	return &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host)}, nil
}

func (c *Config) folders() error {
	if program, err := os.Executable(); err == nil && c.ClientDir == "" {
		c.ClientDir = filepath.Join(filepath.Dir(program), "../share/codehub/clients")
	}
	if c.DataDir == "" {
		if os.Geteuid() == 0 {
			c.DataDir = "/var/lib/codehub"
		} else {
			home, err := os.UserHomeDir()
			if err != nil {
				return setting.Invalid("CODEHUB_DATA_DIR", "it is not set, and the user has no home folder for the default", "set it to a folder")
			}
			c.DataDir = filepath.Join(home, ".local", "share", "codehub")
		}
	}
	abs, err := filepath.Abs(c.DataDir)
	if err != nil {
		return setting.Invalid("CODEHUB_DATA_DIR", err.Error(), "give an absolute path")
	}
	c.DataDir = abs
	if fi, err := os.Stat(abs); err == nil && !fi.IsDir() {
		return setting.Invalid("CODEHUB_DATA_DIR", abs+" is not a folder", "name a folder, or one that does not exist yet")
	}
	if c.BuildImages != "" {
		if c.BuildImages, err = filepath.Abs(c.BuildImages); err != nil {
			return setting.Invalid("CODEHUB_BUILD_IMAGES", err.Error(), "give an absolute path")
		}
	}
	if c.HostDataDir != "" && !filepath.IsAbs(c.HostDataDir) {
		return setting.Invalid("CODEHUB_HOST_DATA_DIR", fmt.Sprintf("%q is not an absolute path", c.HostDataDir), "give the path of the data folder on Docker's host")
	}
	return nil
}

func (c *Config) database() error {
	if c.DatabaseURL == "" {
		return nil
	}
	u, err := url.Parse(c.DatabaseURL)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// The value may contain a password, so the message omits it.
		return setting.Invalid("CODEHUB_DATABASE_URL", "it is not a PostgreSQL URL", "give one like postgres://user:password@host:5432/codehub, or leave it unset for the embedded database")
	}
	return nil
}

// archives checks the bucket's URL without reaching the bucket.
func (c *Config) archives() error {
	if c.ArchiveURL == "" {
		c.ArchiveURL = (&url.URL{Scheme: "file", Path: filepath.Join(c.DataDir, "archives")}).String()
	}
	u, err := url.Parse(c.ArchiveURL)
	switch {
	case err != nil:
		// The value may contain a secret, so the message omits it.
		return setting.Invalid("CODEHUB_ARCHIVE_URL", "it is not a URL", "give one like file:///srv/archives or s3://bucket/prefix")
	case u.Scheme != "file" && u.Scheme != "s3":
		return setting.Invalid("CODEHUB_ARCHIVE_URL", fmt.Sprintf("the scheme %q is not known", u.Scheme), "give one like file:///srv/archives or s3://bucket/prefix")
	}
	c.Archives = u
	return nil
}

func (c *Config) redis() error {
	if c.RedisURL != "" {
		u, err := url.Parse(c.RedisURL)
		if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" && u.Scheme != "unix" {
			return setting.Invalid("CODEHUB_REDIS_URL", "it is not a Redis URL", "give one like redis://host:6379/0, or leave it unset")
		}
	}
	return nil
}

// logins checks that users can log in.
func (c *Config) logins() error {
	if c.Logins.NoPasswordLogin && len(c.SignIn.Providers) == 0 {
		return setting.Invalid("CODEHUB_NO_PASSWORD_LOGIN", "no user could log in, since there is no identity provider", "set CODEHUB_OIDC_FILE, or leave it unset")
	}
	if c.Logins.RequirePasskey && !auth.PasskeysPossible(c.PublicURL) {
		return setting.Invalid("CODEHUB_REQUIRE_PASSKEY", "browsers create no passkeys for "+c.PublicURL.String(), "set CODEHUB_URL to an https address with a host name, or leave it unset")
	}
	return nil
}

func (c *Config) backends() error {
	switch c.Runtime {
	case Docker:
		if c.Defaults.StorageBackend == workspace.StorageKubernetes {
			return setting.Invalid("CODEHUB_STORAGE", "Docker has no such homes", "use docker-volume or local-dir")
		}
		return nil
	case Kubernetes:
		c.Defaults.StorageBackend = workspace.StorageKubernetes
		if c.Archives.Scheme != "s3" {
			return setting.Invalid("CODEHUB_ARCHIVE_URL", "storage jobs in Kubernetes reach no folder of a server", "give a bucket like s3://bucket/prefix")
		}
		err := c.Cluster.Resolve()
		if err == nil && c.Defaults.Disk == "" {
			c.Defaults.Disk = strconv.FormatInt(c.Cluster.Size.Value(), 10)
		}
		return err
	}
	return setting.Invalid("CODEHUB_RUNTIME", fmt.Sprintf("%q is not known", c.Runtime), "use docker or kubernetes")
}

// mostMappedUID is the last uid in the user namespace of a Pod.
const mostMappedUID = 1<<16 - 2

// cluster checks the settings that mean something else in Kubernetes.
func (c *Config) cluster() error {
	switch {
	case c.Runtime != Kubernetes:
	case c.BuildImages != "":
		return setting.Invalid("CODEHUB_BUILD_IMAGES", "the nodes of a cluster do not have images that this machine builds", "push the images to a registry (docs/kubernetes.md)")
	case c.Devcontainers.Builds > 0:
		return setting.Invalid("CODEHUB_DEVCONTAINER_BUILDS", "the nodes of a cluster do not have images that this machine builds", "leave it empty, and have CI build the images of repositories (docs/kubernetes.md)")
	case c.Docker.ExtensionsDir != "":
		return setting.Invalid("CODEHUB_EXTENSIONS_DIR", "the nodes of a cluster do not have the folder", "build an image of the IDE with the extensions, and set CODEHUB_IDE_IMAGE (docs/kubernetes.md)")
	case c.Docker.Sudo && c.Reconcile.UIDs.Last > mostMappedUID:
		return setting.Invalid("CODEHUB_WORKSPACE_UIDS", "with CODEHUB_WORKSPACE_SUDO in Kubernetes, workspaces have only the uids up to "+strconv.Itoa(mostMappedUID), "give a range like 20000-60000")
	}
	return nil
}

func (c *Config) logging() error {
	switch c.LogFormat {
	case "text", "json":
	default:
		return setting.Invalid("CODEHUB_LOG_FORMAT", fmt.Sprintf("%q is not known", c.LogFormat), "use text or json")
	}
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		return setting.Invalid("CODEHUB_LOG_LEVEL", fmt.Sprintf("%q is not known", c.LogLevel), "use debug, info, warn or error")
	}
	return nil
}

// Warnings lists settings that are valid but risky.
func (c *Config) Warnings() []string {
	var w []string
	if c.Layout.PathMode() {
		w = append(w, "workspaces share codehub's own origin (path mode): a program in a workspace can act on the dashboard as the user who has the workspace open; give accounts only to users you trust")
	}
	host, _, _ := net.SplitHostPort(c.Listen)
	if c.AllowHTTP && origin.Loopback(c.PublicURL.Hostname()) {
		w = append(w, "CODEHUB_ALLOW_HTTP allows several accounts on localhost: a port of another user's workspace that a user forwards to localhost can take over the user's session; give accounts only to users you trust")
	}
	if c.PublicURL.Scheme == "http" && !origin.Loopback(c.PublicURL.Hostname()) {
		w = append(w, "CODEHUB_URL is plain http and not localhost: passwords and sessions can be read on the way, browsers refuse service workers, and workspaces can set each other's cookies; put TLS in front and use https")
	} else if c.PublicURL.Scheme == "http" && !origin.Loopback(host) {
		w = append(w, "CODEHUB_LISTEN is open to the network though CODEHUB_URL is "+c.PublicURL.String()+": requests for another address are refused")
	}
	return w
}

// serviceLinks are variables that Kubernetes makes of a Service in the namespace, such as one
// that is named codehub, and Docker of a linked container.
var serviceLinks = regexp.MustCompile(`^CODEHUB_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?=|PORT=\w+://)`)

// CheckEnvironment refuses variables that look like settings and are none, so that a misspelt
// one does not go unnoticed.
func CheckEnvironment(environ []string) error {
	var unknown []string
	known := names()
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "CODEHUB_") && !known[name] && !serviceLinks.MatchString(kv) &&
			!slices.ContainsFunc(ofTests, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			unknown = append(unknown, name)
		}
	}
	if unknown == nil {
		return nil
	}
	slices.Sort(unknown)
	return setting.Invalid(strings.Join(unknown, ", "), "codehub has no such setting", "correct the name or remove it (docs/settings.md)")
}
