package runtimetest

import (
	"errors"

	"codehub/internal/runtime"
)

func restoreTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"restore/into an empty home": func(s *suite) {
			s.createEmpty()
			s.wantVolume("home-1", false)
			s.createEmpty() // leaves it as it is
			s.restored("key-1")
			s.createEmpty()
			s.wantVolume("home-1", false)
			for range 2 {
				s.ok("MarkRestored", s.mark("key-1"))
				s.wantRestored("key-1")
			}
			s.start()
		},
		"restore/settled": func(s *suite) {
			s.marked("key-1")
			for range 2 {
				s.settle()
				s.wantRestored("key-1")
				s.wantHeld()
			}
			s.ok("MarkRestored again", s.mark("key-1"))
			s.wantRestored("key-1")
		},
		"restore/keeps its job until settled": func(s *suite) {
			job := s.marked("key-1")
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			if got := s.job(); got.ID != job.ID {
				s.Fatalf("job = %+v, want %s", got, job.ID)
			}
			s.settle()
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			s.noJob()
			s.wantRestored("key-1")
		},
		"restore/marked by its own job only": func(s *suite) {
			s.createEmpty()
			s.is("MarkRestored without a job", s.mark("key-1"), runtime.ErrConflict)
			spec := s.restoreSpec("write from half", "wait go", "exit 5")
			job := s.startJob(spec)
			s.is("MarkRestored while it runs", s.mark("key-1"), runtime.ErrConflict)
			s.put(spec, "go")
			s.wantReport(job.ID, 5)
			s.is("MarkRestored after it failed", s.mark("key-1"), runtime.ErrConflict)
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			s.restored("key-1")
			s.is("MarkRestored with another key", s.mark("key-2"), runtime.ErrConflict)
			s.is("MarkRestored with another claim", s.Runtime.MarkRestored(s.ctx, s.id, "home-2", "key-1"), runtime.ErrVolumeMismatch)
			s.wantVolume("home-1", false)
			s.ok("MarkRestored", s.mark("key-1"))
			s.wantRestored("key-1")
		},
		"restore/no home to mark": func(s *suite) {
			s.is("MarkRestored", s.mark("key-1"), runtime.ErrVolumeMismatch)
		},
		"restore/empty archive seeds the home": func(s *suite) {
			s.create()
			s.ok("MarkRestored", s.mark("key-0"))
			v, _ := s.volume()
			if v.Marker != "key-0" || v.Seeded {
				s.Fatalf("volume = %+v", v)
			}
			s.wantHome(s.Homes.Seed)
			s.settle()
			if v, _ = s.volume(); v.Marker != "key-0" || v.Seeded {
				s.Fatalf("volume = %+v", v)
			}
			s.removeHome()
			s.nothingRemains()
		},
		"restore/home seeded afterwards": func(s *suite) {
			s.marked("key-1")
			s.create()
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
			s.noJob()
		},
		"restore/no seeding during a job": func(s *suite) {
			job := s.restored("key-1")
			s.is("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil), runtime.ErrConflict)
			s.wantFile("from", "key-1")
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			s.create()
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"restore/into a seeded home": func(s *suite) {
			s.create()
			s.restored("key-1")
			s.wantVolume("home-1", false)
			s.ok("MarkRestored", s.mark("key-1"))
			s.wantRestored("key-1")
		},
		"restore/another archive afterwards": func(s *suite) {
			s.marked("key-1")
			s.restored("key-2")
			s.wantVolume("home-1", false)
			s.is("MarkRestored with the first key", s.mark("key-1"), runtime.ErrConflict)
			s.ok("MarkRestored", s.mark("key-2"))
			s.wantRestored("key-2")
		},
		"restore/same archive by another claim": func(s *suite) {
			s.marked("key-1")
			spec := s.restoreSpec("wipe", "exit 0")
			spec.Claim = "op-late"
			_, err := s.Runtime.StartJob(s.ctx, spec, nil)
			s.is("StartJob", err, runtime.ErrConflict)
			s.wantRestored("key-1")
		},
		"restore/never into a live home": func(s *suite) {
			job := s.marked("key-1")
			s.settle()
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			for _, key := range []string{"key-1", "key-2"} {
				spec := s.restoreSpec("wipe", "exit 0")
				spec.Claim, spec.Key = "op-late", key
				_, err := s.Runtime.StartJob(s.ctx, spec, nil)
				s.is("StartJob", err, runtime.ErrConflict)
			}
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil))
			s.ok("CreateEmptyVolume", s.Runtime.CreateEmptyVolume(s.ctx, s.volumeSpec()))
			s.noJob()
			s.wantRestored("key-1")
		},
		"restore/not while a container runs": func(s *suite) {
			s.create()
			s.Containers.HalfStart(s.T, s.containerSpec())
			if job, err := s.Runtime.StartJob(s.ctx, s.restoreSpec("wipe", "exit 0"), nil); err == nil {
				s.Fatalf("job = %+v", job)
			}
			s.noJob()
			s.wantHome(s.Homes.Seed)
		},
		"restore/home removed with job and marker": func(s *suite) {
			for _, settled := range []bool{false, true} {
				s.marked("key-1")
				if settled {
					s.settle()
				}
				s.removeHome()
				s.noVolume()
				s.noJob()
				s.nothingRemains()
			}
		},
		"restore/home not removed during a job": func(s *suite) {
			s.createEmpty()
			spec := s.restoreSpec("write from job", "wait go", "exit 0")
			job := s.startJob(spec)
			if err := s.Runtime.RemoveVolume(s.ctx, s.id, "home-1", nil); err == nil || errors.Is(err, runtime.ErrUnreachable) {
				s.Fatalf("RemoveVolume under a running job: %v", err)
			}
			s.put(spec, "go")
			s.wantReport(job.ID, 0)
			s.wantFile("from", "job")
		},
		"restore/marker is not reused": func(s *suite) {
			s.marked("key-1")
			s.removeHome()
			s.createEmpty()
			s.wantVolume("home-1", false)
			s.restored("key-1")
			s.wantVolume("home-1", false)
		},
	}
}
