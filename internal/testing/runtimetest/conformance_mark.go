package runtimetest

import (
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// markTests test the marks of an installation, which the subtests would share, so
// this is one test.
func markTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"marks": func(s *suite) {
			at := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
			mark := func(serial int64) workspace.Mark {
				return workspace.Mark{ID: uuid.NewString(), Serial: serial, Identity: "7/5, 1:2", At: at}
			}
			if m, found, err := s.Runtime.Mark(s.ctx); err != nil || found {
				s.Fatalf("Mark before any was stored: %+v, %v, %v", m, found, err)
			}
			first, second, late := mark(1), mark(10), mark(5)
			for _, step := range []struct {
				set, want workspace.Mark
			}{
				{first, first}, {first, first}, {second, second},
				{late, second}, // a delayed write does not win
				{second, second},
			} {
				s.ok("SetMark", s.Runtime.SetMark(s.ctx, step.set))
				got, found, err := s.Runtime.Mark(s.ctx)
				s.ok("Mark", err)
				if diff := cmp.Diff(step.want, got); diff != "" || !found {
					s.Fatalf("after SetMark(%d): found %v (-want +got):\n%s", step.set.Serial, found, diff)
				}
			}
			if _, found, err := s.Neighbour.Mark(s.ctx); err != nil || found {
				s.Fatalf("the neighbour has our mark: %v, %v", found, err)
			}
			s.ok("SetMark of the neighbour", s.Neighbour.SetMark(s.ctx, mark(1000)))
			got, _, err := s.Runtime.Mark(s.ctx)
			s.ok("Mark", err)
			if diff := cmp.Diff(second, got); diff != "" {
				s.Fatalf("with another installation's mark (-want +got):\n%s", diff)
			}
			if _, _, err := s.Down.Mark(s.ctx); err == nil {
				s.Fatal("Mark of a backend that is down")
			}
			s.is("SetMark", s.Down.SetMark(s.ctx, mark(1)), runtime.ErrUnreachable)
		},
		"volumes/carry owner and name": func(s *suite) {
			s.tidy()
			spec := s.volumeSpec()
			spec.Owner, spec.Name = "ann", "my work, 한글"
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, nil))
			s.ok("SettleVolume", s.Runtime.SettleVolume(s.ctx, s.id, spec.Claim))
			if v, ok := s.volume(); !ok || v.Owner != spec.Owner || v.Name != spec.Name {
				s.Fatalf("volume as listed: %+v", v)
			}
			s.ok("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, spec.Claim, nil))
			s.ok("CreateEmptyVolume", s.Runtime.CreateEmptyVolume(s.ctx, spec))
			if v, ok := s.volume(); !ok || v.Owner != spec.Owner || v.Name != spec.Name {
				s.Fatalf("empty volume as listed: %+v", v)
			}
		},
	}
}
