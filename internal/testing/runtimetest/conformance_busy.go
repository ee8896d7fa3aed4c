package runtimetest

import (
	"errors"
	"slices"
	"strings"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// busyTests test that operations on a home in use are refused, and that changes of
// a home are detected.
func busyTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"busy/home in use": func(s *suite) {
			for _, running := range []bool{true, false} {
				s.create()
				name := "reader-" + string(s.id)
				leave := s.Homes.Use(s.T, s.id, name, running)
				busy := func(what string, err error) {
					s.Helper()
					s.is(what, err, runtime.ErrBusy)
					var by *runtime.BusyError
					if !errors.As(err, &by) || by.Container != name || !strings.Contains(err.Error(), name) {
						s.Fatalf("%s does not name the container: %v", what, err)
					}
				}
				_, err := s.Runtime.StartJob(s.ctx, s.archiveSpec("exit 0"), nil)
				busy("StartJob", err)
				spec := s.restoreSpec("wipe", "exit 0")
				_, err = s.Runtime.StartJob(s.ctx, spec, nil)
				busy("StartJob of a restore", err)
				s.noJob()
				_, err = s.Runtime.Fingerprint(s.ctx, s.id, "home-1", nil)
				busy("Fingerprint", err)
				busy("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, "home-1", nil))
				s.wantVolume("home-1", true)
				s.wantHome(s.Homes.Seed)
				leave()
				s.wantReport(s.startJob(s.archiveSpec("say packed", "exit 0")).ID, 0, "packed")
				s.removeHome()
				s.nothingRemains()
			}
		},
		"busy/half-seeded home in use": func(s *suite) {
			s.tidy()
			s.Homes.HalfSeed(s.T, s.volumeSpec())
			leave := s.Homes.Use(s.T, s.id, "reader-"+string(s.id), true)
			s.is("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil), runtime.ErrBusy)
			s.wantVolume("home-1", false)
			leave()
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil))
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"busy/starts are not blocked": func(s *suite) {
			s.create()
			leave := s.Homes.Use(s.T, s.id, "reader-"+string(s.id), true)
			s.settle()
			s.answers(s.start())
			leave()
		},
		"busy/fingerprint changes with the home": func(s *suite) {
			s.create()
			s.settle()
			s.Homes.Edit(s.T, s.id, "write notes one", "write other x")
			last := s.fingerprint()
			for _, lines := range [][]string{
				{"write notes two"}, {"touch notes"}, {"rename notes moved"}, {"chmod moved 600"}, {"socket talk"}, {"write fresh x"},
			} {
				if again := s.fingerprint(); again != last {
					s.Fatalf("nothing has changed, and %s has become %s", last, again)
				}
				s.Homes.Edit(s.T, s.id, lines...)
				now := s.fingerprint()
				if now == last {
					s.Fatalf("%q does not show in %s", lines, now)
				}
				last = now
			}
		},
		"busy/fingerprint with an ended job": func(s *suite) {
			s.create()
			s.settle()
			before := s.fingerprint()
			spec := s.archiveSpec("wait go", "exit 0")
			job := s.startJob(spec)
			_, err := s.Runtime.Fingerprint(s.ctx, s.id, "home-1", nil)
			s.is("Fingerprint while a job runs", err, runtime.ErrBusy)
			s.put(spec, "go")
			s.wantReport(job.ID, 0)
			if after := s.fingerprint(); after != before {
				s.Fatalf("a job that only reads has made %s of %s", after, before)
			}
			if got := s.job(); got.ID != job.ID {
				s.Fatalf("job = %+v, want %s", got, job.ID)
			}
			s.removeHome()
			s.nothingRemains()
		},
		"busy/fingerprint of a missing or other home": func(s *suite) {
			s.tidy()
			for range 2 {
				_, err := s.Runtime.Fingerprint(s.ctx, s.id, "home-1", nil)
				s.is("Fingerprint without a volume", err, runtime.ErrVolumeMismatch)
				s.nothingRemains()
			}
			s.create()
			_, err := s.Runtime.Fingerprint(s.ctx, s.id, "home-2", nil)
			s.is("Fingerprint", err, runtime.ErrVolumeMismatch)
			_, err = s.Neighbour.Fingerprint(s.ctx, s.id, "home-1", nil)
			s.is("Fingerprint of the neighbour", err, runtime.ErrVolumeMismatch)
			s.wantHome(s.Homes.Seed)
		},
		"own/every file of a seeded home": func(s *suite) {
			s.create()
			s.own(ownUID, workspace.ArchivedUID, 0)
			s.wantHome(ownedBy(s.Homes.Seed, ownUID))
			s.own(ownUID, workspace.ArchivedUID, 0) // as after a crash
			s.own(ownUID+1, workspace.ArchivedUID)
			s.wantHome(ownedBy(s.Homes.Seed, ownUID+1))
			spec := s.containerSpec()
			spec.UID = ownUID + 1
			_, err := s.Runtime.StartContainer(s.ctx, spec, nil)
			s.ok("StartContainer", err)
			s.answers(s.container())
		},
		"own/never by root": func(s *suite) {
			s.create()
			if err := s.Runtime.OwnHome(s.ctx, runtime.OwnSpec{Workspace: s.id, VolumeClaim: "home-1"}, nil); err == nil {
				s.Error("the home was given to root")
			}
			spec := s.containerSpec()
			spec.UID = 0
			if _, err := s.Runtime.StartContainer(s.ctx, spec, nil); err == nil {
				s.Error("a container of root was started")
			}
			s.wantHome(s.Homes.Seed)
		},
		"own/nothing of another home": func(s *suite) {
			s.tidy()
			spec := runtime.OwnSpec{Workspace: s.id, VolumeClaim: "home-1", UID: ownUID}
			s.is("OwnHome without a volume", s.Runtime.OwnHome(s.ctx, spec, nil), runtime.ErrVolumeMismatch)
			s.nothingRemains()
			s.create()
			s.is("OwnHome of the neighbour", s.Neighbour.OwnHome(s.ctx, spec, nil), runtime.ErrVolumeMismatch)
			spec.VolumeClaim = "home-2"
			s.is("OwnHome", s.Runtime.OwnHome(s.ctx, spec, nil), runtime.ErrVolumeMismatch)
			s.wantHome(s.Homes.Seed)
		},
		"own/nothing of a home in use": func(s *suite) {
			s.create()
			s.start()
			spec := runtime.OwnSpec{Workspace: s.id, VolumeClaim: "home-1", UID: ownUID}
			s.is("OwnHome", s.Runtime.OwnHome(s.ctx, spec, nil), runtime.ErrBusy)
			s.wantHome(s.Homes.Seed)
		},
		"busy/fingerprint while a container runs": func(s *suite) {
			s.create()
			s.start()
			_, err := s.Runtime.Fingerprint(s.ctx, s.id, "home-1", nil)
			s.is("Fingerprint", err, runtime.ErrBusy)
		},
	}
}

const ownUID = 1_500_321

func (s *suite) own(uid uint32, from ...uint32) {
	s.Helper()
	before := len(s.Remains(s.T, s.id))
	var seen runtime.Progress
	spec := runtime.OwnSpec{Workspace: s.id, VolumeClaim: "home-1", UID: uid, From: from}
	s.ok("OwnHome", s.Runtime.OwnHome(s.ctx, spec, func(p runtime.Progress) { seen = p }))
	if seen.Step != runtime.StepOwning && seen.Step != "" { // it may be too quick to be shown
		s.Fatalf("progress = %+v", seen)
	}
	if after := s.Remains(s.T, s.id); len(after) != before {
		s.Fatalf("%q remain", after)
	}
}

// ownedBy returns files, all of which belong to the workspace, with another owner.
func ownedBy(files []File, uid int) []File {
	out := slices.Clone(files)
	for i := range out {
		out[i].UID, out[i].GID = uid, uid
	}
	return out
}

// fingerprint computes the home's fingerprint and checks that it leaves nothing
// behind.
func (s *suite) fingerprint() string {
	s.Helper()
	before := len(s.Remains(s.T, s.id))
	var seen runtime.Progress
	print, err := s.Runtime.Fingerprint(s.ctx, s.id, "home-1", func(p runtime.Progress) { seen = p })
	s.ok("Fingerprint", err)
	if seen.Step != runtime.StepChecking {
		s.Fatalf("progress = %+v", seen)
	}
	if after := s.Remains(s.T, s.id); len(after) != before || print == "" {
		s.Fatalf("fingerprint %q, and %q remain", print, after)
	}
	return print
}
