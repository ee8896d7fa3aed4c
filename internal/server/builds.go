package server

import (
	"context"
	"log/slog"

	"codehub/internal/base/setting"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/server/config"
)

// openBuilds asks the program of CODEHUB_BUILD_IMAGES for its images; nil without one.
func openBuilds(ctx context.Context, cfg config.Config, log *slog.Logger) (*imagebuild.Builder, error) {
	if cfg.BuildImages == "" {
		return nil, nil
	}
	c := imagebuild.Config{Program: cfg.BuildImages, Log: log}
	if cfg.CAFile != "" {
		c.Env = []string{"CODEHUB_CA_FILE=" + cfg.CAFile}
	}
	builds, err := imagebuild.New(ctx, c)
	if err != nil {
		return nil, setting.Invalid("CODEHUB_BUILD_IMAGES", "`"+cfg.BuildImages+" list` failed: "+err.Error(), "give codehub's images/build.sh, or leave it empty and run make image")
	}
	return builds, nil
}

// buildImages makes the images until stop or ctx ends. When one becomes ready, workspaces that
// were started with another one are offered it.
func (s *server) buildImages(ctx, stop context.Context) error {
	if s.builds == nil {
		return nil
	}
	building, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(stop, end)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.builds.Run(building)
	}()
	ready := 0
	for {
		changed := s.builds.Changed()
		n := 0
		for _, image := range s.builds.Images() {
			if image.State == imagebuild.Ready {
				n++
			}
		}
		if n > ready {
			s.ctrl.CheckImages()
		}
		ready = n
		select {
		case <-changed:
		case <-done:
			return nil
		}
	}
}
