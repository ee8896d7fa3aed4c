// Package home keeps the homes of workspaces: as volumes of Docker, or as folders of the server.
package home

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/volume"

	"codehub/internal/base/health"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/workspace"
)

// Config says where homes are; see docker.Config and docker.Settings.
type Config struct {
	DataDir, HostDataDir string
	HomeQuota            string
	UIDs                 workspace.UIDRange
}

// Homes are the homes of an installation's workspaces.
type Homes struct {
	*engine.Engine
	Remote                 bool          // Docker's directory is not assumed to be reachable
	CountAfter, CountEvery time.Duration // see watchSeeding

	helper  *helper.Helper
	images  *image.Images
	cfg     Config
	quota   homequota.Kind    // of new homes in folders
	noQuota *health.Condition // set if quota is not homequota.None
	noUIDs  *health.Condition // containers cannot have the uids of workspaces
	mapped  atomic.Value      // userMap, where Docker maps users

	holderImage  sync.Mutex                              // held while the image is created
	removing     engine.Reads[struct{}, []volume.Volume] // records of removals
	createdSeeds sync.Map                                // IDs of seed containers that Docker has finished creating
	damaged      sync.Map                                // workspaces whose damaged home.json was logged
	orphans      map[string]bool                         // objects without a home in the last sweep

	mu     sync.Mutex
	root   string // Docker's data directory as of rootAt
	rootAt time.Time
}

// New returns an installation's homes. It does not call Docker.
func New(h *helper.Helper, images *image.Images, cfg Config) *Homes {
	homes := &Homes{
		Engine: h.Engine, helper: h, images: images, cfg: cfg, CountAfter: countAfter, CountEvery: countEvery,
		noUIDs: h.Conditions.New(health.Config{
			Name: "workspace-uids", Failing: "containers cannot have the uids of workspaces; no workspace can be started",
			Resolved: "containers can have the uids of workspaces again", Level: slog.LevelError, Log: h.Log,
		}),
	}
	homes.chooseQuota()
	return homes
}
