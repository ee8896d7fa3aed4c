// Package tools keeps the volumes with codehub's programs that all workspaces mount: the agent,
// and the IDE with its extensions.
package tools

import (
	"log/slog"

	"codehub/internal/base/health"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/runtime/imagebuild"
)

// Config says which programs workspaces get; see docker.Config and docker.Settings.
type Config struct {
	AgentDigest            string
	DefaultImage, IDEImage string
	Builds                 *imagebuild.Builder
	ExtensionsDir          string
}

// Tools are the volumes with programs.
type Tools struct {
	*engine.Engine
	helper *helper.Helper
	images *image.Images
	cfg    Config

	agent, ide   volume
	filled       engine.Reads[string, bool] // volumes that the helper has filled
	offered      extensionFolder
	noExtensions *health.Condition // the folder with extensions cannot be used
}

// New returns the tools of a Docker Engine.
func New(h *helper.Helper, images *image.Images, cfg Config) *Tools {
	condition := func(name, failing, resolved string, level slog.Level) *health.Condition {
		return h.Conditions.New(health.Config{Name: name, Failing: failing, Resolved: resolved, Level: level, Log: h.Log})
	}
	return &Tools{
		Engine: h.Engine, helper: h, images: images, cfg: cfg,
		agent: newVolume(engine.RoleAgent, agentDir, condition("agent",
			"the agent's volume cannot be filled; no workspace can be started", "the agent's volume is complete again", slog.LevelError)),
		ide: newVolume(engine.RoleIDE, ideDir, condition("ide",
			"the IDE's volume cannot be filled; no workspace whose image has no IDE can be started", "the IDE's volume is complete again", slog.LevelError)),
		noExtensions: condition("extensions",
			"the extensions of CODEHUB_EXTENSIONS_DIR cannot be used as they are", "the extensions of CODEHUB_EXTENSIONS_DIR are in order again", slog.LevelWarn),
	}
}
