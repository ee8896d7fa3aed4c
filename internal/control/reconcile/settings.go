package reconcile

import (
	"fmt"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
)

// Settings are the controller's settings, as codehub serve declares them.
type Settings struct {
	// MaxOperations does not count image pulls, archives, restores, and the removal of the
	// homes of deleted workspaces: of these a quarter as many run at once. A
	// MaxStorageJobs of 0 is 4.
	MaxOperations  int `name:"max-operations" env:"CODEHUB_MAX_OPERATIONS" min:"1" max:"1000000" default:"32" help:"Concurrent operations."`
	MaxStorageJobs int `name:"max-storage-jobs" env:"CODEHUB_MAX_STORAGE_JOBS" min:"1" max:"1000000" default:"4" help:"Concurrent archive jobs; restore jobs have the same limit."`

	// ActiveInterval holds for ActiveFor after a wake and while an operation runs.
	IdleInterval   time.Duration `name:"coordinator-idle-interval" type:"seconds" env:"CODEHUB_COORDINATOR_IDLE_INTERVAL,COORDINATOR_IDLE_INTERVAL" min:"100ms" max:"1h" default:"15s" help:"Reconcile interval."`
	ActiveInterval time.Duration `name:"coordinator-active-interval" type:"seconds" env:"CODEHUB_COORDINATOR_ACTIVE_INTERVAL,COORDINATOR_ACTIVE_INTERVAL" min:"50ms" max:"1m" default:"1s" help:"Reconcile interval while operations run."`
	ActiveFor      time.Duration `name:"coordinator-active-for" env:"CODEHUB_COORDINATOR_ACTIVE_FOR" min:"1s" max:"1h" default:"30s" help:"How long the active interval applies after a change."`

	// OrphanDelay counts from the first observation by any leader; 0 is twice
	// IdleInterval. Without AcceptVolumeLoss, an observation in which many volumes
	// have vanished at once fails.
	OrphanDelay time.Duration `name:"orphan-delay" env:"CODEHUB_ORPHAN_DELAY" min:"1s" max:"87600h" default:"10m" help:"How long orphaned containers and jobs are kept."`
	// ImageCheckInterval is the time between two looks for newer images; 0: never.
	ImageCheckInterval time.Duration `name:"image-check-interval" env:"CODEHUB_IMAGE_CHECK_INTERVAL" min:"0" max:"720h" default:"1h" help:"Time between two checks for newer images of workspaces (0 = never)."`

	AcceptVolumeLoss bool `name:"accept-volume-loss" env:"CODEHUB_ACCEPT_VOLUME_LOSS" help:"Accept that more than a fifth of all volumes is gone at once."`

	WorkspaceUIDs string `name:"workspace-uids" env:"CODEHUB_WORKSPACE_UIDS" default:"1500000-1999999" help:"Range of uids of this host, of which each workspace gets one. No other program may use them."`

	WorkspaceEnvFile string `name:"workspace-env-file" env:"CODEHUB_WORKSPACE_ENV_FILE" help:"File with environment variables of all workspaces, one NAME=value per line. It is read again at each start of a workspace."`

	UIDs workspace.UIDRange `kong:"-"` // of WorkspaceUIDs; the zero value: ArchivedUID for all
}

// Resolve checks the settings. It returns an invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	if s.ActiveInterval > s.IdleInterval {
		return setting.Invalid("COORDINATOR_ACTIVE_INTERVAL", fmt.Sprintf("%s is longer than the idle interval (%s)", s.ActiveInterval, s.IdleInterval), "make it the shorter one")
	}
	var err error
	if s.UIDs, err = workspace.ParseUIDRange(s.WorkspaceUIDs); err != nil {
		return setting.Invalid("CODEHUB_WORKSPACE_UIDS", err.Error(), "give one like 1500000-1999999, or 1000-1000 to run all workspaces as 1000")
	}
	if s.WorkspaceEnvFile == "" {
		return nil
	}
	if _, err := (&environ.File{Path: s.WorkspaceEnvFile}).Env(); err != nil {
		return setting.Invalid("CODEHUB_WORKSPACE_ENV_FILE", err.Error(), "give a file with lines like HTTP_PROXY=http://proxy.example.com:3128")
	}
	return nil
}
