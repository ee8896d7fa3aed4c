// Package job runs storage jobs: containers that archive, back up and restore homes.
package job

import (
	"sync/atomic"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/home"
)

// Jobs are the storage jobs of an installation.
type Jobs struct {
	*engine.Engine
	helper  *helper.Helper
	homes   *home.Homes
	listing engine.Reads[struct{}, []runtime.Job]
	tasks   engine.Reads[struct{}, []taskContainer] // see ClearTasks

	noWeights atomic.Bool // see weightRefused
}

// New returns the storage jobs of an installation.
func New(h *helper.Helper, homes *home.Homes) *Jobs {
	return &Jobs{Engine: h.Engine, helper: h, homes: homes}
}
