package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/cli"
	"codehub/internal/server/config"
	"codehub/internal/workspace"
)

// parse reads settings as the command line does.
func parse(t *testing.T, args ...string) (config.Config, error) {
	t.Helper()
	var c config.Config
	p, err := cli.Parser(&c, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(append([]string{"--data-dir", t.TempDir()}, args...)); err != nil {
		t.Fatal(err)
	}
	return c, c.Resolve()
}

// The limits of homes count only if homes are measured.
func TestMeasuredHomes(t *testing.T) {
	t.Parallel()
	for interval, unmeasured := range map[string]bool{"0": true, "1h": false} {
		c, err := parse(t, "--size-interval", interval, "--workspace-disk", "1g")
		if err != nil {
			t.Fatal(err)
		}
		if c.Defaults.Sizes.Unmeasured != unmeasured {
			t.Errorf("CODEHUB_SIZE_INTERVAL=%s: %+v", interval, c.Defaults.Sizes)
		}
	}
}

func TestDefaults(t *testing.T) {
	c, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:8080" || c.PublicURL.String() != "http://codehub.localhost:8080" || c.Limits.PerUser != 2 ||
		c.Limits.Global != 100 || c.Retention.DeleteGrace.String() != "2h0m0s" || c.Defaults.Sizes.Default != (workspace.Size{Name: "default", NanoCPUs: 2e9, Memory: 4 << 30}) || c.Docker.PullBytesPerSecond != 64<<10 || c.Docker.PullTimeout != time.Hour || c.Ballast.Bytes != 64<<20 {
		t.Errorf("defaults differ from docs/settings.md: %+v", c)
	}
	if c.Archives.String() != "file://"+filepath.Join(c.DataDir, "archives") || c.Retention.Keep != 1 || c.Retention.Delay.String() != "2h0m0s" || c.Bucket.MinFreeShare != 0.05 {
		t.Errorf("defaults of archives differ from docs/settings.md: %+v", c)
	}
	if !filepath.IsAbs(c.DataDir) {
		t.Errorf("data folder %q is not absolute", c.DataDir)
	}
}

func TestURLFollowsPort(t *testing.T) {
	c, err := parse(t, "--listen", "127.0.0.1:9090")
	if err != nil || c.PublicURL.String() != "http://codehub.localhost:9090" {
		t.Errorf("got %v, %v", c.PublicURL, err)
	}
}

// Each name of this machine in CODEHUB_URL stands for the host of local mode.
func TestLocalHost(t *testing.T) {
	for setting, want := range map[string]string{
		"http://localhost:8081": "http://codehub.localhost:8081", "http://127.0.0.1": "http://codehub.localhost", "http://[::1]:80": "http://codehub.localhost:80",
		"http://codehub.localhost:8080": "http://codehub.localhost:8080", "https://localhost:8443": "https://localhost:8443",
	} {
		c, err := parse(t, "--url", setting)
		if err != nil || c.PublicURL.String() != want || c.Layout.Main() != strings.TrimSuffix(want, ":80") {
			t.Errorf("%s: %v, %v", setting, c.PublicURL, err)
		}
	}
}

// On localhost the ports of this machine receive codehub's cookies, with https too.
func TestOneAccount(t *testing.T) {
	for _, tc := range []struct {
		args []string
		one  bool
	}{
		{nil, true},
		{[]string{"--url", "http://localhost:8081"}, true},
		{[]string{"--url", "https://localhost:8443"}, true},
		{[]string{"--url", "http://code.localhost", "--workspace-url", "path"}, true},
		{[]string{"--allow-http"}, false},
		{[]string{"--url", "https://code.example.com", "--workspace-url", "path"}, false},
	} {
		if c, err := parse(t, tc.args...); err != nil || c.OneAccount() != tc.one {
			t.Errorf("%v: %v, %v", tc.args, c.OneAccount(), err)
		}
	}
}

// A certificate covers these.
func TestHosts(t *testing.T) {
	for _, tc := range []struct{ public, workspaces, want string }{
		{"https://code.example.com", "path", "code.example.com"},
		{"https://code.example.com:8443", "https://*.ws.example.com:8443", "code.example.com *.ws.example.com"},
		{"https://code.example.com", "https://*-ws.example.com", "code.example.com *.example.com"},
		{"https://localhost:8443", "", "localhost *.localhost"},
	} {
		c, err := parse(t, "--url", tc.public, "--workspace-url", tc.workspaces)
		if got := strings.Join(c.Hosts(), " "); err != nil || got != tc.want {
			t.Errorf("%s, %s: %q, %v", tc.public, tc.workspaces, got, err)
		}
	}
}

func TestURLWithCertificate(t *testing.T) {
	c, err := parse(t, "--listen", "127.0.0.1:8443", "--tls-cert", "tls.crt", "--tls-key", "tls.key")
	if err != nil || c.PublicURL.String() != "https://localhost:8443" {
		t.Errorf("got %v, %v", c.PublicURL, err)
	}
}

// inKubernetes returns the arguments of a server on Kubernetes, and more.
func inKubernetes(more ...string) []string {
	return append([]string{"--runtime", "kubernetes", "--archive-url", "s3://bucket/prefix?endpoint=https://s3.example.com", "--server-image", "codehub/server:1"}, more...)
}

func TestWrongSettingsAreNamed(t *testing.T) {
	for _, tc := range []struct {
		name    string
		args    []string
		setting string
	}{
		{"no way to log in", []string{"--no-password-login"}, "CODEHUB_NO_PASSWORD_LOGIN"},
		{"passkeys at an address without a name", []string{"--require-passkey", "--url", "https://192.0.2.1", "--workspace-url", "path"}, "CODEHUB_REQUIRE_PASSKEY"},
		{"no file of authorities", []string{"--ca-file", "/nonexistent"}, "CODEHUB_CA_FILE"},
		{"no folder of templates", []string{"--templates-dir", "/nonexistent"}, "CODEHUB_TEMPLATES_DIR"},
		{"no file of providers", []string{"--oidc-file", "/nonexistent"}, "CODEHUB_OIDC_FILE"},
		{"no file of OAuth2 apps", []string{"--git-file", "/nonexistent"}, "CODEHUB_GIT_FILE"},
		{"listen without port", []string{"--listen", "localhost"}, "CODEHUB_LISTEN"},
		{"listen port too high", []string{"--listen", "127.0.0.1:65536"}, "CODEHUB_LISTEN"},
		{"listen host name", []string{"--listen", "example.com:80"}, "CODEHUB_LISTEN"},
		{"url without scheme", []string{"--url", "code.example.com"}, "CODEHUB_URL"},
		{"url ftp", []string{"--url", "ftp://code.example.com"}, "CODEHUB_URL"},
		{"url with path", []string{"--url", "https://example.com/codehub"}, "CODEHUB_URL"},
		{"url with user", []string{"--url", "https://a:b@example.com"}, "CODEHUB_URL"},
		{"url port 0", []string{"--url", "https://example.com:0"}, "CODEHUB_URL"},
		{"url plain http on a domain", []string{"--url", "http://code.example.com", "--workspace-url", "http://*.ws.example.com"}, "CODEHUB_URL"},
		{"url plain http on an address", []string{"--url", "http://192.0.2.1:8080", "--workspace-url", "path"}, "CODEHUB_URL"},
		{"workspace url unset on a domain", []string{"--url", "https://code.example.com"}, "CODEHUB_WORKSPACE_URL"},
		{"workspace url of codehub itself", []string{"--url", "https://code.example.com", "--workspace-url", "https://code.example.com"}, "CODEHUB_WORKSPACE_URL"},
		{"workspace url, another scheme", []string{"--workspace-url", "https://*.ws.example.com"}, "CODEHUB_WORKSPACE_URL"},
		{"workspace url without a star", []string{"--workspace-url", "http://ws.localhost"}, "CODEHUB_WORKSPACE_URL"},
		{"trusted proxies, a name", []string{"--trusted-proxies", "127.0.0.1,proxy.lan"}, "CODEHUB_TRUSTED_PROXIES"},
		{"trusted proxies, everybody", []string{"--trusted-proxies", "0.0.0.0/0"}, "CODEHUB_TRUSTED_PROXIES"},
		{"trusted proxies, everybody with IPv6", []string{"--trusted-proxies", "::/0"}, "CODEHUB_TRUSTED_PROXIES"},
		{"trusted proxies, both families", []string{"--trusted-proxies", "::ffff:0:0/90"}, "CODEHUB_TRUSTED_PROXIES"},
		{"PROXY protocol without trusted proxies", []string{"--proxy-protocol"}, "CODEHUB_PROXY_PROTOCOL"},
		{"certificate without key", []string{"--url", "https://code.example.com", "--tls-cert", "tls.crt"}, "CODEHUB_TLS_KEY"},
		{"key without certificate", []string{"--url", "https://code.example.com", "--tls-key", "tls.key"}, "CODEHUB_TLS_CERT"},
		{"certificate for http", []string{"--url", "http://code.example.com", "--tls-cert", "tls.crt", "--tls-key", "tls.key"}, "CODEHUB_URL"},
		{"TLS version", []string{"--tls-min-version", "1.1"}, "CODEHUB_TLS_MIN_VERSION"},
		{"reload", []string{"--tls-reload-interval", "1ms"}, "CODEHUB_TLS_RELOAD_INTERVAL"},
		{"extensions on Kubernetes", inKubernetes("--extensions-dir", "/srv/extensions"), "CODEHUB_EXTENSIONS_DIR"},
		{"sudo on Kubernetes with uids that Pods do not have", inKubernetes("--workspace-sudo"), "CODEHUB_WORKSPACE_UIDS"},
		{"a registry that is none", inKubernetes("--plain-registries", "http://registry:5000"), "CODEHUB_PLAIN_REGISTRIES"},
		{"a private registry that is none", inKubernetes("--private-registries", "a b"), "CODEHUB_PRIVATE_REGISTRIES"},
		{"no size for the node's disk", inKubernetes("--ephemeral-storage", "much"), "CODEHUB_EPHEMERAL_STORAGE"},
		{"metrics nowhere", []string{"--metrics-listen", "9090"}, "CODEHUB_METRICS_LISTEN"},
		{"redirect from nowhere", []string{"--url", "https://code.example.com", "--redirect-listen", "80"}, "CODEHUB_REDIRECT_LISTEN"},
		{"redirect to http", []string{"--redirect-listen", "0.0.0.0:80"}, "CODEHUB_REDIRECT_LISTEN"},
		{"ACME and a certificate", []string{"--url", "https://code.example.com", "--acme", "--tls-cert", "tls.crt", "--tls-key", "tls.key", "--redirect-listen", "0.0.0.0:80"}, "CODEHUB_ACME"},
		{"ACME without port 80", []string{"--url", "https://code.example.com", "--acme"}, "CODEHUB_ACME"},
		{"ACME for an address", []string{"--url", "https://192.0.2.1", "--workspace-url", "path", "--acme", "--redirect-listen", "0.0.0.0:80"}, "CODEHUB_ACME"},
		{"ACME for localhost", []string{"--acme", "--redirect-listen", "0.0.0.0:80"}, "CODEHUB_ACME"},
		{"ACME for http", []string{"--url", "http://code.example.com", "--acme", "--redirect-listen", "0.0.0.0:80"}, "CODEHUB_URL"},
		{"ACME for a wildcard without DNS", []string{"--url", "https://code.example.com", "--workspace-url", "https://*.ws.example.com", "--acme", "--redirect-listen", "0.0.0.0:80"}, "CODEHUB_ACME_DNS_HOOK"},
		{"ACME directory", []string{"--url", "https://code.example.com", "--acme", "--redirect-listen", "0.0.0.0:80", "--acme-directory", "http://ca.example.com/dir"}, "CODEHUB_ACME_DIRECTORY"},
		{"ACME mail", []string{"--url", "https://code.example.com", "--acme", "--redirect-listen", "0.0.0.0:80", "--acme-email", "Ann <ann@example.com>"}, "CODEHUB_ACME_EMAIL"},
		{"DNS hook without ACME", []string{"--url", "https://code.example.com", "--acme-dns-hook", "/bin/true"}, "CODEHUB_ACME_DNS_HOOK"},
		{"DNS hook, time", []string{"--acme-dns-timeout", "2h"}, "CODEHUB_ACME_DNS_TIMEOUT"},
		{"DNS hook, wait", []string{"--acme-dns-wait", "2h"}, "CODEHUB_ACME_DNS_WAIT"},
		{"host data dir relative", []string{"--host-data-dir", "data"}, "CODEHUB_HOST_DATA_DIR"},
		{"database scheme", []string{"--database-url", "mysql://root:hunter2@db/codehub"}, "CODEHUB_DATABASE_URL"},
		{"runtime", []string{"--runtime", "podman"}, "CODEHUB_RUNTIME"},
		{"storage", []string{"--storage", "nfs"}, "CODEHUB_STORAGE"},
		{"image", []string{"--default-image=-v /:/host"}, "CODEHUB_DEFAULT_IMAGE"},
		{"egress", []string{"--egress-deny", "10.0.0.0/8,everything"}, "CODEHUB_EGRESS_DENY"},
		{"egress, allowed", []string{"--egress-allow", "10.0.0.5"}, "CODEHUB_EGRESS_ALLOW"},
		{"subnet, words", []string{"--network-subnet", "mine"}, "CODEHUB_NETWORK_SUBNET"},
		{"subnet, an address in it", []string{"--network-subnet", "10.213.0.1/24"}, "CODEHUB_NETWORK_SUBNET"},
		{"subnet, too small", []string{"--network-subnet", "10.213.0.0/29"}, "CODEHUB_NETWORK_SUBNET"},
		{"subnet, IPv6", []string{"--network-subnet", "fd00::/24"}, "CODEHUB_NETWORK_SUBNET"},
		{"environment file", []string{"--workspace-env-file", "/dev/null/env"}, "CODEHUB_WORKSPACE_ENV_FILE"},
		{"cpus", []string{"--workspace-cpus=-1"}, "CODEHUB_WORKSPACE_CPUS"},
		{"cpus not a number", []string{"--workspace-cpus", "NaN"}, "CODEHUB_WORKSPACE_CPUS"},
		{"memory", []string{"--workspace-memory", "lots"}, "CODEHUB_WORKSPACE_MEMORY"},
		{"memory too small", []string{"--workspace-memory", "1m"}, "CODEHUB_WORKSPACE_MEMORY"},
		{"pids", []string{"--workspace-pids", "3"}, "CODEHUB_WORKSPACE_PIDS"},
		{"connections", []string{"--workspace-connections", "63"}, "CODEHUB_WORKSPACE_CONNECTIONS"},
		{"connections per second", []string{"--workspace-connection-rate", "1000001"}, "CODEHUB_WORKSPACE_CONNECTION_RATE"},
		{"log size", []string{"--workspace-log-size", "1"}, "CODEHUB_WORKSPACE_LOG_SIZE"},
		{"gallery, an address", []string{"--extensions-gallery", "https://gallery.example.com"}, "CODEHUB_EXTENSIONS_GALLERY"},
		{"gallery, a list", []string{"--extensions-gallery", "[]"}, "CODEHUB_EXTENSIONS_GALLERY"},
		{"gallery, null", []string{"--extensions-gallery", "null"}, "CODEHUB_EXTENSIONS_GALLERY"},
		{"gallery, no address", []string{"--extensions-gallery", `{"itemUrl": "https://gallery.example.com"}`}, "CODEHUB_EXTENSIONS_GALLERY"},
		{"gallery, another scheme", []string{"--extensions-gallery", `{"serviceUrl": "file:///srv/gallery"}`}, "CODEHUB_EXTENSIONS_GALLERY"},
		{"gallery, too long", []string{"--extensions-gallery", `{"serviceUrl": "https://gallery.example.com/` + strings.Repeat("x", 64<<10) + `"}`}, "CODEHUB_EXTENSIONS_GALLERY"},
		{"per user", []string{"--max-running-per-user=-1"}, "MAX_RUNNING_PER_USER"},
		{"global", []string{"--max-running-global=-1"}, "MAX_RUNNING_GLOBAL"},
		{"login queue", []string{"--login-queue", "0"}, "CODEHUB_LOGIN_QUEUE"},
		{"login wait", []string{"--login-wait", "0s"}, "CODEHUB_LOGIN_WAIT"},
		{"workspaces of a user", []string{"--max-workspaces-per-user=-1"}, "CODEHUB_MAX_WORKSPACES_PER_USER"},
		{"tokens of a user", []string{"--max-tokens-per-user=-1"}, "CODEHUB_MAX_TOKENS_PER_USER"},
		{"audit log", []string{"--audit-keep=-1s"}, "CODEHUB_AUDIT_KEEP"},
		{"operations", []string{"--max-operations", "0"}, "CODEHUB_MAX_OPERATIONS"},
		{"grace", []string{"--delete-grace=-1s"}, "CODEHUB_DELETE_GRACE"},
		{"archives, no scheme", []string{"--archive-url=/srv/archives"}, "CODEHUB_ARCHIVE_URL"},
		{"archives, another scheme", []string{"--archive-url=ftp://host/archives"}, "CODEHUB_ARCHIVE_URL"},
		{"archives, no URL", []string{"--archive-url=s3://%zz"}, "CODEHUB_ARCHIVE_URL"},
		{"generations", []string{"--archive-keep=-1"}, "CODEHUB_ARCHIVE_KEEP"},
		{"collection", []string{"--gc-delay=1s"}, "CODEHUB_GC_DELAY"},
		{"free disk, words", []string{"--min-free=much"}, "CODEHUB_MIN_FREE"},
		{"free disk, all of it", []string{"--min-free=100%"}, "CODEHUB_MIN_FREE"},
		{"free disk, less than none", []string{"--min-free=-1"}, "CODEHUB_MIN_FREE"},
		{"free disk, not a number", []string{"--min-free=NaN"}, "CODEHUB_MIN_FREE"},
		{"pull rate, words", []string{"--pull-min-rate", "slow"}, "CODEHUB_PULL_MIN_RATE"},
		{"pull rate, too high", []string{"--pull-min-rate", "2g"}, "CODEHUB_PULL_MIN_RATE"},
		{"pull timeout", []string{"--pull-timeout", "1s"}, "CODEHUB_PULL_TIMEOUT"},
		{"backups, too often", []string{"--database-backup-interval", "1s"}, "CODEHUB_DATABASE_BACKUP_INTERVAL"},
		{"backups of homes, too often", []string{"--backup-interval", "1s"}, "CODEHUB_BACKUP_INTERVAL"},
		{"backups of homes, no rule", []string{"--backup-keep", "24h,7x"}, "CODEHUB_BACKUP_KEEP"},
		{"ballast, words", []string{"--ballast", "heavy"}, "CODEHUB_BALLAST"},
		{"ballast, too small", []string{"--ballast", "1k"}, "CODEHUB_BALLAST"},
		{"ballast, too large", []string{"--ballast", "2000g"}, "CODEHUB_BALLAST"},
		{"storage jobs", []string{"--max-storage-jobs", "0"}, "CODEHUB_MAX_STORAGE_JOBS"},
		{"start timeout", []string{"--start-timeout", "1s"}, "CODEHUB_START_TIMEOUT"},
		{"check for idle workspaces", []string{"--ttl-interval", "3m"}, "CODEHUB_TTL_INTERVAL"},
		{"flush", []string{"--activity-flush-interval", "1m"}, "CODEHUB_ACTIVITY_FLUSH_INTERVAL"},
		{"garbage collection", []string{"--gc-interval", "1s"}, "CODEHUB_GC_INTERVAL"},
		{"active for", []string{"--coordinator-active-for", "0s"}, "CODEHUB_COORDINATOR_ACTIVE_FOR"},
		{"keep awake", []string{"--keep-awake-max", "1s"}, "CODEHUB_KEEP_AWAKE_MAX"},
		{"orphans", []string{"--orphan-delay", "0s"}, "CODEHUB_ORPHAN_DELAY"},
		{"standby TTL", []string{"--ttl-standby-seconds=-1"}, "TTL_STANDBY_SECONDS"},
		{"archive TTL", []string{"--ttl-archive-seconds=-1"}, "TTL_ARCHIVE_SECONDS"},
		{"Redis", []string{"--redis-url", "http://host"}, "CODEHUB_REDIS_URL"},
		{"prefix of events", []string{"--redis-channel-sse-prefix", "a b"}, "REDIS_CHANNEL_SSE_PREFIX"},
		{"prefix of wakes", []string{"--redis-channel-wake-prefix", "*"}, "REDIS_CHANNEL_WAKE_PREFIX"},
		{"activity key", []string{"--redis-activity-key="}, "CODEHUB_REDIS_ACTIVITY_KEY"},
		{"active", []string{"--coordinator-active-interval", "1ms"}, "COORDINATOR_ACTIVE_INTERVAL"},
		{"idle", []string{"--coordinator-idle-interval", "1ms"}, "COORDINATOR_IDLE_INTERVAL"},
		{"active over idle", []string{"--coordinator-active-interval", "30s"}, "COORDINATOR_ACTIVE_INTERVAL"},
		{"shutdown", []string{"--shutdown-timeout", "0s"}, "CODEHUB_SHUTDOWN_TIMEOUT"},
		{"memory limit", []string{"--memory-limit", "1m"}, "CODEHUB_MEMORY_LIMIT"},
		{"request timeout", []string{"--request-timeout", "10ms"}, "CODEHUB_REQUEST_TIMEOUT"},
		{"connections", []string{"--max-connections", "1"}, "CODEHUB_MAX_CONNECTIONS"},
		{"requests per user", []string{"--max-requests-per-user", "1"}, "CODEHUB_MAX_REQUESTS_PER_USER"},
		{"log format", []string{"--log-format", "xml"}, "CODEHUB_LOG_FORMAT"},
		{"log level", []string{"--log-level", "loud"}, "CODEHUB_LOG_LEVEL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse(t, tc.args...)
			var p *setting.Problem
			if !errors.As(err, &p) {
				t.Fatalf("accepted, or another error: %v", err)
			}
			if p.Setting != tc.setting || p.Why == "" || p.Do == "" {
				t.Errorf("got %+v, want one about %s", p, tc.setting)
			}
			if strings.ContainsRune(p.Error(), '\n') {
				t.Errorf("more than one line: %q", p.Error())
			}
			if strings.Contains(p.Error(), "hunter2") {
				t.Error("the message repeats a password")
			}
		})
	}
}

// The names of the first version's settings still work.
func TestSeedNamesWorkBare(t *testing.T) {
	for name, v := range map[string]string{
		"MAX_RUNNING_PER_USER": "7", "MAX_RUNNING_GLOBAL": "8", "TTL_STANDBY_SECONDS": "9", "TTL_ARCHIVE_SECONDS": "10",
		"COORDINATOR_IDLE_INTERVAL": "20s", "COORDINATOR_ACTIVE_INTERVAL": "3s",
		"REDIS_CHANNEL_SSE_PREFIX": "a", "REDIS_CHANNEL_WAKE_PREFIX": "b",
	} {
		t.Setenv(name, v)
	}
	c, err := parse(t)
	if err != nil || c.Limits.PerUser != 7 || c.Limits.Global != 8 || c.Idle.StandbyTTL != 9 || c.Idle.ArchiveTTL != 10 ||
		c.Reconcile.IdleInterval != 20*time.Second || c.Reconcile.ActiveInterval != 3*time.Second || c.Redis.SSEPrefix != "a" || c.Redis.WakePrefix != "b" {
		t.Errorf("%+v, %v", c, err)
	}
}

// Intervals of the controller may be numbers of seconds, as in the first version; other durations
// need a unit, since a number without one could be meant as hours.
func TestIntervalsInSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"15": 15 * time.Second, "0.5": 500 * time.Millisecond, "15s": 15 * time.Second, "1m": time.Minute} {
		t.Setenv("COORDINATOR_IDLE_INTERVAL", text)
		t.Setenv("COORDINATOR_ACTIVE_INTERVAL", text)
		c, err := parse(t)
		if err != nil || c.Reconcile.IdleInterval != want || c.Reconcile.ActiveInterval != want {
			t.Errorf("%q: %s, %s, %v; want %s", text, c.Reconcile.IdleInterval, c.Reconcile.ActiveInterval, err, want)
		}
	}
	for variable, text := range map[string]string{
		"COORDINATOR_IDLE_INTERVAL": "15 s", "COORDINATOR_ACTIVE_INTERVAL": "inf", "CODEHUB_DELETE_GRACE": "2", "CODEHUB_TTL_INTERVAL": "60",
	} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, text)
			p, err := cli.Parser(new(config.Config), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Parse([]string{"--data-dir", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "duration") {
				t.Errorf("%q: %v", text, err)
			}
		})
	}
}

// documented returns the rows of docs/settings.md by the name of their setting.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows[cells[1]] = cells[2:5]
	}
	return rows
}

// docs/development.md lists the file of each group of settings.
func TestGroupsAreDocumented(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../../docs/development.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(b), "| group | file |")
	list, _, _ = strings.Cut(list, "\n\n")
	groups := reflect.TypeFor[config.Config]()
	for i := range groups.NumField() {
		f := groups.Field(i)
		if _, embedded := f.Tag.Lookup("embed"); embedded && !strings.Contains(list, strings.TrimPrefix(f.Type.PkgPath(), "codehub/")+"/") {
			t.Errorf("docs/development.md does not list the group %s", f.Type)
		}
	}
}

// Every setting has the default that docs/settings.md gives, and is named there;
// everything that is named there is a setting.
func TestSettingsAreDocumented(t *testing.T) {
	rows := documented(t)
	for f := range config.Fields() {
		if f.Tag.Get("name") == "" {
			continue
		}
		names := strings.Split(f.Tag.Get("env"), ",")
		name := names[len(names)-1]
		row, ok := rows[name]
		delete(rows, name)
		want := f.Tag.Get("default")
		if f.Type.Kind() == reflect.Bool && want == "" {
			want = "false"
		}
		switch {
		case !ok:
			t.Errorf("docs/settings.md does not have %s", name)
		case want != "" && row[0] != want:
			t.Errorf("docs/settings.md: the default of %s is %q, not %q", name, want, row[0])
		case row[2] == "":
			t.Errorf("docs/settings.md does not say what %s means", name)
		case f.Tag.Get("help") == "":
			t.Errorf("%s has no help", name)
		}
	}
	delete(rows, "variable")
	delete(rows, "---")
	for name := range rows {
		t.Errorf("docs/settings.md has %s, which is not a setting", name)
	}
}

// The bounds of numbers and durations are those that docs/settings.md gives.
func TestRangesAreDocumented(t *testing.T) {
	bounds := regexp.MustCompile(`from (\S+) to (\S+?(?:, or 0)?)$|(up) to (\d+)`)
	rows := documented(t)
	checked := 0
	for f := range config.Fields() {
		if f.Tag.Get("name") == "" || f.Type.Kind() != reflect.Int && f.Type != reflect.TypeFor[time.Duration]() {
			continue
		}
		c, err := parse(t)
		if err != nil {
			t.Fatal(err)
		}
		reflect.ValueOf(&c).Elem().FieldByIndex(f.Index).SetInt(-1)
		var p *setting.Problem
		if err := c.Resolve(); !errors.As(err, &p) {
			t.Errorf("%s: -1 is accepted, or another error: %v", f.Name, err)
			continue
		}
		variable := p.Setting
		m := bounds.FindStringSubmatch(p.Do)
		if m == nil {
			t.Errorf("%s: %q names no bounds", p.Setting, p.Do)
			continue
		}
		least, most := m[1], m[2]
		if m[3] != "" {
			least, most = "0", m[4]
		}
		from, to, _ := strings.Cut(rows[p.Setting][1], " to ")
		most, zero := strings.CutSuffix(most, ", or 0")
		to, documentedZero := strings.CutSuffix(to, ", or 0")
		if amount(t, from) != amount(t, least) || amount(t, to) != amount(t, most) || zero != documentedZero {
			t.Errorf("docs/settings.md: the range of %s is %s to %s, not %q", p.Setting, least, most, rows[p.Setting][1])
		}
		reflect.ValueOf(&c).Elem().FieldByIndex(f.Index).SetInt(0)
		if err := c.Resolve(); zero && errors.As(err, &p) && p.Setting == variable {
			t.Errorf("%s: 0 is refused: %v", f.Name, err)
		}
		checked++
	}
	if checked < 15 {
		t.Errorf("only %d settings have bounds", checked)
	}
}

// amount reads a number, or a duration in seconds.
func amount(t *testing.T, s string) float64 {
	t.Helper()
	const tenYears = 10 * 365 * 24 * 3600
	if s == "10 years" {
		return tenYears
	}
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		return n
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Errorf("%q is neither a number nor a duration", s)
	}
	return d.Seconds()
}

func TestAddressesOfWorkspaces(t *testing.T) {
	for _, tc := range []struct {
		args     []string
		pattern  string
		warnings []string // parts of them
	}{
		{nil, "http://*.localhost:8080", nil},
		{[]string{"--listen", "127.0.0.1:9090"}, "http://*.localhost:9090", nil},
		{[]string{"--workspace-url", "path"}, "", []string{"path mode"}},
		{[]string{"--allow-http"}, "http://*.localhost:8080", []string{"several accounts on localhost"}},
		{[]string{"--url", "https://code.example.com", "--workspace-url", "https://*-ws.example.com"}, "https://*-ws.example.com", nil},
		{[]string{"--url", "https://code.example.com", "--workspace-url", "path"}, "", []string{"path mode"}},
		{[]string{"--url", "http://192.0.2.1:8080", "--workspace-url", "path", "--allow-http"}, "", []string{"path mode", "plain http"}},
		{[]string{"--url", "http://code.lan", "--workspace-url", "http://*.ws.lan", "--allow-http"}, "http://*.ws.lan", []string{"plain http"}},
		{[]string{"--url", "http://codehub.localhost:8080", "--workspace-url", "http://*.localhost:8080"}, "http://*.localhost:8080", nil},
		{[]string{"--listen", "0.0.0.0:8080"}, "http://*.localhost:8080", []string{"open to the network"}},
	} {
		c, err := parse(t, tc.args...)
		if err != nil {
			t.Errorf("%v: %v", tc.args, err)
			continue
		}
		if got := c.Layout.Pattern(); got != tc.pattern {
			t.Errorf("%v: the pattern is %q, want %q", tc.args, got, tc.pattern)
		}
		got := c.Warnings()
		if len(got) != len(tc.warnings) {
			t.Errorf("%v: warnings %q", tc.args, got)
			continue
		}
		for i, part := range tc.warnings {
			if !strings.Contains(got[i], part) {
				t.Errorf("%v: warning %q, want one of %q", tc.args, got[i], part)
			}
		}
	}
}

// A variable that looks like a setting and is none is refused with its name. Those of tests, of
// other commands and of Kubernetes' Services are not settings either, but no mistakes.
func TestCheckEnvironment(t *testing.T) {
	t.Parallel()
	for variable, refused := range map[string]bool{
		"CODEHUB_LISTN=x": true, "CODEHUB_PORT=8080": true, "CODEHUB_SERVICE=x": true, "CODEHUB_LISTEN=y": false, "CODEHUB_TTL_STANDBY_SECONDS=1": false, "TTL_STANDBY_SECONDS=1": false,
		"PATH=z": false, "CODEHUB_TEST_BINARY=b": false, "CODEHUB_BENCH_ROUNDS=3": false, "CODEHUB_SESSION_TOKEN=t": false, "CODEHUB_IMPORT_TOKEN=t": false,
		"CODEHUB_SERVICE_HOST=10.96.0.7": false, "CODEHUB_SERVICE_PORT=80": false, "CODEHUB_SERVICE_PORT_HTTP=80": false, "CODEHUB_PORT=tcp://10.96.0.7:80": false,
		"CODEHUB_PORT_80_TCP=tcp://10.96.0.7:80": false, "CODEHUB_PORT_80_TCP_ADDR=10.96.0.7": false, "CODEHUB_SSH_SERVICE_HOST=10.96.0.8": false, "CODEHUB_METRICS_PORT_9090_TCP_PROTO=tcp": false,
	} {
		err := config.CheckEnvironment([]string{"CODEHUB_URL=http://localhost", variable})
		name, _, _ := strings.Cut(variable, "=")
		if refused != (err != nil) || refused && !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: %v", variable, err)
		}
	}
}
