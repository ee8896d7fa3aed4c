package runtimetest

import (
	"strings"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

func imageTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"image/pinned until another one is chosen": func(s *suite) {
			s.create()
			ref := s.Images.Pullable(s.T)
			first := s.startAs(ref, runtime.ImageChoice{Generation: 7}, false)
			if first.ImageID == "" || !strings.HasPrefix(first.ImageDigest, "sha256:") || first.ImageNote != "" || first.ImageGeneration != 7 {
				s.Fatalf("container = %+v", first)
			}
			pin := runtime.Image{ID: first.ImageID, Digest: first.ImageDigest}
			for _, ask := range []bool{true, false} {
				s.newest(ref, ask, pin)
			}
			s.Images.Republish(s.T, ref)
			s.newest(ref, false, pin)
			newest, err := s.Runtime.Newest(s.ctx, ref, true)
			s.ok("Newest", err)
			if newest.ID != "" || newest.Digest == "" || newest.Digest == pin.Digest {
				s.Fatalf("newest = %+v", newest)
			}
			s.isImage(s.startAs(ref, runtime.ImageChoice{Pinned: pin}, true), pin, "")

			second := s.startAs(ref, runtime.ImageChoice{Pull: true}, false)
			if second.ImageID == pin.ID || second.ImageDigest != newest.Digest || second.ImageNote != "" {
				s.Fatalf("container = %+v, want the newest image %+v", second, newest)
			}
			next := runtime.Image{ID: second.ImageID, Digest: second.ImageDigest}
			s.newest(ref, true, next)
			s.isImage(s.startAs(ref, runtime.ImageChoice{Pinned: pin}, true), pin, "")

			s.remove()
			s.Images.Take(s.T, pin.ID)
			s.isImage(s.startAs(ref, runtime.ImageChoice{Pinned: pin}, false), pin, "")
			gone := "sha256:" + strings.Repeat("0", 64)
			s.isImage(s.startAs(ref, runtime.ImageChoice{Pinned: runtime.Image{ID: gone}}, true), next, workspace.ImageReplaced)
			s.isImage(s.startAs(ref, runtime.ImageChoice{Pinned: runtime.Image{ID: gone, Digest: gone}}, false), next, workspace.ImageReplaced)
			s.remove()
			s.Images.Take(s.T, pin.ID)
			s.Images.Take(s.T, next.ID)
		},
		"image/a home from the pinned image": func(s *suite) {
			s.tidy()
			ref := s.Images.Pullable(s.T)
			spec := s.volumeSpec()
			spec.Image, spec.Choice.Pinned.ID = ref, s.idOf(s.Image)
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, func(p runtime.Progress) {
				if p.Step == runtime.StepPulling {
					s.Error("an image was pulled")
				}
			}))
			s.wantHome(s.Homes.Seed)
			s.isImage(s.startAs(s.Image, runtime.ImageChoice{Pull: true}, true), runtime.Image{ID: s.idOf(s.Image)}, "") // it is from no registry
			if _, err := s.Runtime.Newest(s.ctx, s.Images.Missing, true); err == nil {
				s.Error("a registry without the image has a newest one")
			}
			_, err := s.Down.Newest(s.ctx, s.Image, false)
			s.is("Newest", err, runtime.ErrUnreachable)
		},
	}
}

func (s *suite) idOf(ref string) string {
	s.Helper()
	img, err := s.Runtime.Newest(s.ctx, ref, false)
	s.ok("Newest", err)
	return img.ID
}

func (s *suite) newest(ref string, ask bool, want runtime.Image) {
	s.Helper()
	got, err := s.Runtime.Newest(s.ctx, ref, ask)
	s.ok("Newest", err)
	if got != want {
		s.Fatalf("newest = %+v, want %+v", got, want)
	}
}

func (s *suite) isImage(c runtime.Container, want runtime.Image, note string) {
	s.Helper()
	if c.ImageID != want.ID || c.ImageDigest != want.Digest || c.ImageNote != note {
		s.Fatalf("container = %+v, want the image %+v with the note %q", c, want, note)
	}
}

func (s *suite) remove() {
	s.Helper()
	s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, s.container().ID, 0))
}

// startAs replaces the container by one of this image, and returns it as listed. here means that
// the machine has the image.
func (s *suite) startAs(ref string, choice runtime.ImageChoice, here bool) runtime.Container {
	s.Helper()
	if c, ok := s.find(s.ctx); ok {
		s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))
	}
	spec := s.containerSpec()
	spec.Image, spec.Choice = ref, choice
	made, err := s.Runtime.StartContainer(s.ctx, spec, func(p runtime.Progress) {
		if here && !s.Remote && p.Step == runtime.StepPulling {
			s.Error("an image was pulled")
		}
	})
	s.ok("StartContainer", err)
	listed := s.container()
	if listed.ImageID != made.ImageID || listed.ImageDigest != made.ImageDigest || listed.ImageNote != made.ImageNote || listed.ImageGeneration != choice.Generation {
		s.Fatalf("listed %+v, was %+v", listed, made)
	}
	return listed
}
