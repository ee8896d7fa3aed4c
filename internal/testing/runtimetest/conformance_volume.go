package runtimetest

import (
	"sync"

	"codehub/internal/runtime"
)

func volumeTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"volume/seeded like the image": func(s *suite) {
			s.create()
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"volume/limit": func(s *suite) {
			s.tidy()
			limit := func(want int64) {
				s.Helper()
				if !s.Homes.Limits {
					want = 0
				}
				if v, ok := s.volume(); !ok || v.Limit != want {
					s.Fatalf("the home: %+v, want the limit %d", v, want)
				}
			}
			spec := s.volumeSpec()
			spec.Disk = 128 << 20
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, nil))
			limit(spec.Disk)
			s.wantHome(s.Homes.Seed)
			larger := s.containerSpec()
			larger.Size.Disk = 256 << 20
			_, err := s.Runtime.StartContainer(s.ctx, larger, nil)
			s.ok("StartContainer", err)
			if s.Homes.Grows {
				limit(larger.Size.Disk)
			} else {
				limit(spec.Disk)
			}
		},
		"volume/created twice, also after settling": func(s *suite) {
			s.create()
			c := s.start()
			s.write("kept", "by hand")
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))
			s.create()
			s.wantHome(s.seedWith("kept", "by hand"))
			s.settle()
			s.create()
			s.wantHome(s.seedWith("kept", "by hand"))
		},
		"volume/another claim's is not touched": func(s *suite) {
			s.create()
			spec := s.volumeSpec()
			spec.Claim = "home-2"
			s.is("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, nil), runtime.ErrVolumeMismatch)
			s.is("CreateEmptyVolume", s.Runtime.CreateEmptyVolume(s.ctx, spec), runtime.ErrVolumeMismatch)
			s.is("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, "home-2", nil), runtime.ErrVolumeMismatch)
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"volume/manual one is not touched": func(s *suite) {
			s.Homes.PutForeign(s.T, s.id)
			s.Cleanup(func() { s.Homes.Take(s.T, s.id) })
			s.is("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil), runtime.ErrVolumeMismatch)
			s.is("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, "home-1", nil), runtime.ErrVolumeMismatch)
			s.is("CreateEmptyVolume", s.Runtime.CreateEmptyVolume(s.ctx, s.volumeSpec()), runtime.ErrVolumeMismatch)
			s.is("MarkRestored", s.mark("key-1"), runtime.ErrVolumeMismatch)
			_, err := s.Runtime.StartJob(s.ctx, s.restoreSpec("wipe", "exit 0"), nil)
			s.is("StartJob", err, runtime.ErrVolumeMismatch)
			_, err = s.Runtime.StartContainer(s.ctx, s.containerSpec(), nil)
			s.is("StartContainer", err, runtime.ErrVolumeMismatch)
			if len(s.Remains(s.T, s.id)) != 1 {
				s.Fatalf("remains: %q, want the volume alone", s.Remains(s.T, s.id))
			}
		},
		"volume/created after manual removal": func(s *suite) {
			s.create()
			for _, claim := range []string{"home-1", "home-2"} {
				s.Homes.Take(s.T, s.id)
				spec := s.volumeSpec()
				spec.Claim = claim
				s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, nil))
				s.wantVolume(claim, true)
				s.wantHome(s.Homes.Seed)
			}
		},
		"volume/half seeded is seeded again": func(s *suite) {
			s.tidy()
			s.Homes.HalfSeed(s.T, s.volumeSpec())
			s.wantVolume("home-1", false)
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil))
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"volume/half seeded is removed": func(s *suite) {
			s.tidy()
			s.Homes.HalfSeed(s.T, s.volumeSpec())
			s.removeHome()
			s.nothingRemains()
		},
		"volume/settled twice, and with another claim": func(s *suite) {
			s.create()
			s.ok("SettleVolume with another claim", s.Runtime.SettleVolume(s.ctx, s.id, "home-2"))
			s.wantVolume("home-1", true)
			for range 2 {
				s.settle()
			}
			if v, _ := s.volume(); v.Claim != "home-1" {
				s.Fatalf("volume after settling: %+v", v)
			}
			s.wantHeld()
			s.wantHome(s.Homes.Seed)
		},
		"volume/settle and remove without a volume": func(s *suite) {
			s.settle()
			s.removeHome()
		},
		"volume/removed with its records": func(s *suite) {
			for _, settled := range []bool{false, true} {
				s.create()
				if settled {
					s.settle()
				}
				for range 2 {
					s.removeHome()
				}
				s.noVolume()
				s.nothingRemains()
			}
		},
		"volume/proof is not reused": func(s *suite) {
			s.create()
			s.settle()
			s.removeHome()
			spec := s.volumeSpec()
			spec.Claim = "home-2"
			s.Homes.HalfSeed(s.T, spec)
			s.wantVolume("home-2", false) // the proof of the first must not count for this one
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, nil))
			s.wantVolume("home-2", true)
		},
		"volume/removed by hand": func(s *suite) {
			s.create()
			s.settle()
			s.Homes.Take(s.T, s.id)
			s.noVolume()
			_, err := s.Runtime.StartContainer(s.ctx, s.containerSpec(), nil)
			s.is("StartContainer", err, runtime.ErrVolumeMismatch)
			s.removeHome()
			s.nothingRemains()
		},
		"volume/removed by hand, replaced and removed": func(s *suite) {
			s.create()
			s.settle()
			s.Homes.Take(s.T, s.id)
			spec := s.volumeSpec()
			spec.Claim = "home-2"
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, nil))
			s.ok("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, "home-2", nil))
			s.nothingRemains()
		},
		"volume/created concurrently": func(s *suite) {
			s.tidy()
			var wg sync.WaitGroup
			errs := make([]error, 2)
			for i := range errs {
				wg.Go(func() { errs[i] = s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil) })
			}
			wg.Wait()
			// One may get ErrBusy; neither may damage the other's result.
			if errs[0] != nil && errs[1] != nil {
				s.Fatalf("both failed: %v; %v", errs[0], errs[1])
			}
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil))
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"volume/kept while a container runs": func(s *suite) {
			s.create()
			c := s.start()
			if err := s.Runtime.RemoveVolume(s.ctx, s.id, "home-1", nil); err == nil {
				s.Fatal("RemoveVolume under a running container succeeded")
			}
			s.wantVolume("home-1", true)
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))
			s.wantHome(s.Homes.Seed)
		},
	}
}
