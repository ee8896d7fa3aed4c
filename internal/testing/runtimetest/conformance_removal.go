package runtimetest

import (
	"codehub/internal/runtime"
)

// removalTests test a home during its removal and after an interrupted one.
func removalTests() map[string]func(*suite) {
	seeded := func(s *suite) { s.create() }
	settled := func(s *suite) {
		s.create()
		s.settle()
	}
	marked := func(s *suite) {
		s.marked("key-1")
	}
	tests := map[string]func(*suite){
		"removal/progress": func(s *suite) {
			s.create()
			var last runtime.Progress
			s.ok("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, "home-1", func(p runtime.Progress) {
				if p.Step != runtime.StepRemoving || p.Entries < last.Entries {
					s.Errorf("progress %+v after %+v", p, last)
				}
				last = p
			}))
			if last.Step == "" {
				s.Fatal("no progress")
			}
			if least := int64(len(s.Homes.Seed) - 1); last.Entries < least && !s.Remote && !s.Homes.AtOnce {
				s.Fatalf("progress ends with %+v, of at least %d entries", last, least)
			}
			s.noVolume()
			s.nothingRemains()
		},
		"removal/empty home": func(s *suite) {
			s.createEmpty()
			s.removeHome()
			s.noVolume()
			s.nothingRemains()
		},
	}
	for name, before := range map[string]func(*suite){"seeded": seeded, "settled": settled, "restored": marked} {
		tests["removal/cut off, of a home that was "+name] = func(s *suite) {
			before(s)
			s.Homes.HalfRemove(s.T, s.id, "home-1")
			s.wantRemoving("home-1") // neither complete nor gone
			s.settle()
			s.wantRemoving("home-1")
			s.is("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil), runtime.ErrVolumeMismatch)
			s.is("CreateEmptyVolume", s.Runtime.CreateEmptyVolume(s.ctx, s.volumeSpec()), runtime.ErrVolumeMismatch)
			_, err := s.Runtime.StartContainer(s.ctx, s.containerSpec(), nil)
			s.is("StartContainer", err, runtime.ErrVolumeMismatch)
			_, err = s.Runtime.StartJob(s.ctx, s.restoreSpec("wipe", "exit 0"), nil)
			s.is("StartJob", err, runtime.ErrVolumeMismatch)
			s.is("MarkRestored", s.mark("key-1"), runtime.ErrVolumeMismatch)
			s.wantRemoving("home-1")
			s.is("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, "home-2", nil), runtime.ErrVolumeMismatch)
			s.removeHome()
			s.noVolume()
			s.noJob()
			s.nothingRemains()
		}
	}
	return tests
}
