// Package docker runs workspaces with the Docker Engine of one machine
// (design §11): a container and a named volume, or a folder of the server's
// own, for each, on a network that is walled off from the host.
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/breaker"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/wall"
	"codehub/internal/workspace"
)

// Config says which installation a Runtime works for and what its workspaces
// may use.
type Config struct {
	// Installation is a UUID. It labels everything that is made, and what does
	// not carry it is never touched.
	Installation string

	// Host is the engine's address; empty takes DOCKER_HOST, else the default
	// socket.
	Host string

	// DataDir holds the folders of local-dir homes; it must be absolute.
	// HostDataDir is the same folder as the engine sees it, where that differs.
	DataDir     string
	HostDataDir string

	// HelperBinary is a static Linux executable that calls HelperMain when its
	// first argument is "host-helper"; empty means the running executable.
	HelperBinary string

	CPUs        float64 // 0 = no limit
	MemoryBytes int64   // memory and swap together; 0 = no limit
	PidsLimit   int64   // 0 = no limit

	LogMaxBytes int64 // per log file; 0 = 10 MiB
	LogMaxFiles int   // 0 = 2

	// Sudo leaves the engine's default capabilities (without NET_RAW) and lets
	// set-uid programs gain privileges, for people who want apt.
	Sudo bool

	EgressDeny  []netip.Prefix // beside what is always out of reach
	AllowNoWall bool           // start workspaces even where the wall cannot stand

	// Publish reaches workspaces by a port published on 127.0.0.1 even where
	// their own address could be reached.
	Publish bool

	ExtraLabels map[string]string // put on everything that is made
	Log         *slog.Logger
}

// Runtime implements runtime.Runtime on a Docker Engine.
type Runtime struct {
	cfg     Config
	api     *client.Client // under the breaker
	plain   *client.Client // for what is not; see connect
	idle    *http.Transport
	breaker *breaker.Breaker
	probe   *http.Client
	log     *slog.Logger
	now     func() time.Time
	names   names
	helper  helperImage
	addrs   addresses
	locks   locks

	prepareLock chan struct{} // held while the surroundings are checked or repaired
	applyWall   func(context.Context, wall.Spec) error

	holderImage sync.Mutex // held while it is made

	countAfter, countEvery time.Duration // see watchSeeding
	farAway                bool          // Docker's folder is not believed to be reachable

	made    sync.Map // ids of seed containers that the engine has made to the end
	damaged sync.Map // workspaces whose damaged home.json was reported

	mu      sync.Mutex
	network *network  // as last seen by Prepare
	stoodAt time.Time // when network and wall were last seen to stand
	wallAt  time.Time // when the wall was last set or checked
	noWall  bool      // that it runs without a wall was reported
	swept   time.Time
	orphans map[string]bool // what the last sweep saw without a home
	root    string          // the engine's folder, as it said at rootAt
	rootAt  time.Time
}

var _ runtime.Runtime = (*Runtime)(nil)

// New returns a Runtime for the engine. It does not ask the engine anything:
// one that is down makes the calls fail with runtime.ErrUnreachable.
func New(_ context.Context, cfg Config) (*Runtime, error) {
	if !workspace.ValidID(cfg.Installation) {
		return nil, fmt.Errorf("installation %q is not a UUID", cfg.Installation)
	}
	if cfg.DataDir != "" && !filepath.IsAbs(cfg.DataDir) {
		return nil, fmt.Errorf("data folder %q is not an absolute path", cfg.DataDir)
	}
	if cfg.HostDataDir == "" {
		cfg.HostDataDir = cfg.DataDir
	}
	if cfg.HelperBinary == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the running executable: %w", err)
		}
		cfg.HelperBinary = path
	}
	if cfg.LogMaxBytes == 0 {
		cfg.LogMaxBytes = 10 << 20
	}
	if cfg.LogMaxFiles == 0 {
		cfg.LogMaxFiles = 2
	}
	if cfg.Log == nil {
		return nil, errors.New("no logger given")
	}

	r := &Runtime{
		cfg:         cfg,
		log:         cfg.Log,
		now:         time.Now,
		names:       namesOf(cfg.Installation),
		prepareLock: make(chan struct{}, 1),
		countAfter:  countAfter,
		countEvery:  countEvery,
		probe: &http.Client{
			Timeout: probeTimeout,
			// One connection a probe: addresses are reused, connections must not be.
			Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	}
	if err := r.connect(); err != nil {
		return nil, fmt.Errorf("configure the Docker client: %w", err)
	}
	r.applyWall = r.standWall
	return r, nil
}

// Close gives the connections to the engine back.
func (r *Runtime) Close() error {
	r.breaker.Close()
	r.idle.CloseIdleConnections()
	return r.plain.Close()
}

func report(progress func(runtime.Progress), step string) {
	if progress != nil {
		progress(runtime.Progress{Step: step})
	}
}
