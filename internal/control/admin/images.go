package admin

import (
	"context"
	"time"

	"codehub/api"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/workspace"
)

func (s *Service) images() []api.ImageBuild {
	out := []api.ImageBuild{}
	for _, i := range s.cfg.Builds.Images() {
		out = append(out, imageOf(i))
	}
	return out
}

func imageOf(i imagebuild.Image) api.ImageBuild {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		t = t.UTC()
		return &t
	}
	out := api.ImageBuild{
		Name: i.Name, Image: i.Ref, State: string(i.State), Step: i.Step, Steps: i.Steps, StepText: i.Text,
		StartedAt: at(i.Began), EndedAt: at(i.Ended), Error: i.Err, Log: []string{},
	}
	if i.State == imagebuild.Failed {
		out.Log = append(out.Log, i.Log...)
	}
	return out
}

// RetryImage makes an image again whose build on this server failed.
func (s *Service) RetryImage(ctx context.Context, caller workspace.Caller, name string) (api.ImageBuild, error) {
	if _, err := s.cfg.Store.NamesOf(ctx, caller, nil); err != nil { // CodeForbidden
		return api.ImageBuild{}, err
	}
	image, found := s.cfg.Builds.Retry(name)
	if !found {
		return api.ImageBuild{}, workspace.Errorf(workspace.CodeNotFound, "This server builds no image with this name.")
	}
	return imageOf(image), nil
}
