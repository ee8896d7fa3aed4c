package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"codehub/internal/runtime"
)

// installationTests test that an installation neither lists nor changes another's
// objects.
func installationTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"installations/are isolated": func(s *suite) {
			s.create()
			s.settle()
			c := s.start()
			n := s.Neighbour

			containers, err := n.Containers(s.ctx)
			s.ok("Containers", err)
			if slices.ContainsFunc(containers, func(c runtime.Container) bool { return c.Workspace == s.id }) {
				s.Fatalf("the neighbour lists %+v", containers)
			}
			volumes, err := n.Volumes(s.ctx)
			s.ok("Volumes", err)
			if slices.ContainsFunc(volumes, func(v runtime.Volume) bool { return v.Workspace == s.id }) {
				s.Fatalf("the neighbour lists %+v", volumes)
			}
			if err := n.RemoveContainer(s.ctx, c.ID, 0); err == nil {
				s.Fatal("removing another installation's container gave no error")
			}
			_, err = n.Upstream(s.ctx, s.id)
			s.is("Upstream", err, runtime.ErrNotFound)
			s.is("Logs", n.Logs(s.ctx, s.id, 0, false, io.Discard), runtime.ErrNotFound)
			spec := s.containerSpec()
			if _, err = n.StartContainer(s.ctx, spec, nil); !errors.Is(err, runtime.ErrConflict) && !errors.Is(err, runtime.ErrVolumeMismatch) {
				s.Fatalf("StartContainer of the neighbour: %v", err)
			}
			if err := n.SettleVolume(s.ctx, s.id, "home-1"); err != nil {
				s.Fatalf("SettleVolume of the neighbour: %v", err)
			}
			s.neighbourLeavesVolume()
			if got := s.container(); got.ID != c.ID || got.State != runtime.ContainerRunning {
				s.Fatalf("container = %+v, want %s running", got, c.ID)
			}
			s.wantHome(s.Homes.Seed)
		},
		"installations/keep an unsettled home": func(s *suite) {
			s.create()
			s.neighbourLeavesVolume()
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
	}
}

func (s *suite) neighbourLeavesVolume() {
	s.Helper()
	s.is("CreateVolume", s.Neighbour.CreateVolume(s.ctx, s.volumeSpec(), nil), runtime.ErrVolumeMismatch)
	s.is("RemoveVolume", s.Neighbour.RemoveVolume(s.ctx, s.id, "home-1", nil), runtime.ErrVolumeMismatch)
}

// backendTests test images and a runtime that is not responding.
func backendTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"prepare/repeated": func(s *suite) {
			s.ok("Prepare", prepare(s.ctx, s.Runtime))
		},
		"progress/without a pull": func(s *suite) {
			s.tidy()
			var steps []string
			note := func(p runtime.Progress) { steps = append(steps, p.Step) }
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), note))
			_, err := s.Runtime.StartContainer(s.ctx, s.containerSpec(), note)
			s.ok("StartContainer", err)
			want := []string{runtime.StepCreating, runtime.StepSeeding, runtime.StepCreating, runtime.StepStarting}
			if !slices.Equal(steps, want) {
				s.Fatalf("steps = %q, want %q", steps, want)
			}
		},
		"image/missing": func(s *suite) {
			s.create()
			for _, image := range []string{s.Images.Missing, "NOT An Image"} {
				spec := s.containerSpec()
				spec.Image = image
				_, err := s.Runtime.StartContainer(s.ctx, spec, nil)
				s.wantPullError(err, image)
				s.noContainer()
			}
			s.removeHome()
			spec := s.volumeSpec()
			spec.Image = s.Images.Missing
			s.wantPullError(s.Runtime.CreateVolume(s.ctx, spec, nil), s.Images.Missing)
			if v, ok := s.volume(); ok && v.Seeded {
				s.Fatalf("volume = %+v without an image", v)
			}
			s.removeHome()
			s.nothingRemains()
		},
		"image/pulled for a home": func(s *suite) {
			s.tidy()
			spec := s.volumeSpec()
			spec.Image = s.Images.Pullable(s.T)
			s.pulls(func(note func(runtime.Progress)) error {
				return s.Runtime.CreateVolume(s.ctx, spec, note)
			})
			s.wantHome(s.Homes.Seed)
		},
		"image/pulled for a start": func(s *suite) {
			s.create()
			spec := s.containerSpec()
			spec.Image = s.Images.Pullable(s.T)
			s.pulls(func(note func(runtime.Progress)) error {
				c, err := s.Runtime.StartContainer(s.ctx, spec, note)
				if err == nil {
					s.answers(c)
				}
				return err
			})
			spec.Claim = "start-2"
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, s.container().ID, 0))
			_, err := s.Runtime.StartContainer(s.ctx, spec, func(p runtime.Progress) {
				if p.Step == runtime.StepPulling {
					s.Error("an image that is there was pulled again")
				}
			})
			s.ok("StartContainer", err)
		},
		"unreachable/every call fails": func(s *suite) {
			r := s.Down
			_, containers := r.Containers(s.ctx)
			_, volumes := r.Volumes(s.ctx)
			_, start := r.StartContainer(s.ctx, s.containerSpec(), nil)
			_, upstream := r.Upstream(s.ctx, s.id)
			for call, err := range map[string]error{
				"Containers":      containers,
				"Volumes":         volumes,
				"CreateVolume":    r.CreateVolume(s.ctx, s.volumeSpec(), nil),
				"SettleVolume":    r.SettleVolume(s.ctx, s.id, "home-1"),
				"RemoveVolume":    r.RemoveVolume(s.ctx, s.id, "home-1", nil),
				"StartContainer":  start,
				"RemoveContainer": r.RemoveContainer(s.ctx, fmt.Sprintf("%064x", 1), time.Second),
				"Upstream":        upstream,
				"Logs":            r.Logs(s.ctx, s.id, 0, false, io.Discard),
				"Prepare":         r.Prepare(s.ctx),
			} {
				s.is(call, err, runtime.ErrUnreachable)
			}
		},
		"unreachable/not after a cancellation": func(s *suite) {
			ctx, cancel := context.WithCancel(s.ctx)
			cancel()
			_, list := s.Runtime.Containers(ctx)
			_, start := s.Runtime.StartContainer(ctx, s.containerSpec(), nil)
			for call, err := range map[string]error{
				"Containers": list, "StartContainer": start,
				"CreateVolume": s.Runtime.CreateVolume(ctx, s.volumeSpec(), nil),
			} {
				s.is(call, err, context.Canceled)
				if errors.Is(err, runtime.ErrUnreachable) {
					s.Fatalf("%s: %v", call, err)
				}
			}
		},
	}
}

func (s *suite) wantPullError(err error, image string) {
	s.Helper()
	var pull *runtime.PullError
	if !errors.As(err, &pull) || pull.Image != image || pull.Message == "" {
		s.Fatalf("error = %v, want a PullError of %s with words", err, image)
	}
	if errors.Is(err, runtime.ErrUnreachable) {
		s.Fatalf("error = %v: the backend did answer", err)
	}
}

// pulls runs a call that has to pull, and checks its progress.
func (s *suite) pulls(call func(func(runtime.Progress)) error) {
	s.Helper()
	var got []runtime.Progress
	s.ok("pull", call(func(p runtime.Progress) {
		if p.Step == runtime.StepPulling {
			got = append(got, p)
		}
	}))
	if s.Remote {
		return
	}
	if len(got) == 0 {
		s.Fatal("no progress of the pull")
	}
	last := got[len(got)-1]
	if last.Total == 0 || last.Done != last.Total {
		s.Fatalf("progress ends with %+v", last)
	}
	for i := 1; i < len(got); i++ {
		if got[i].Done < got[i-1].Done {
			s.Fatalf("progress goes back: %+v after %+v", got[i], got[i-1])
		}
	}
}
