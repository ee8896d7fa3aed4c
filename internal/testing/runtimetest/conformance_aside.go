package runtimetest

import (
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
)

// asideTests test setting aside the volume that blocks a home.
func asideTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"aside/volume without labels": func(s *suite) {
			s.tidy()
			s.Homes.PutForeign(s.T, s.id)
			s.Homes.FillForeign(s.T, s.id, "kept", "by hand")
			if v, ok := s.volume(); !ok || !v.Foreign || v.Claim != "" || v.Storage != s.Storage {
				s.Fatalf("volume without labels: %+v, %v", v, ok)
			}
			s.is("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil), runtime.ErrVolumeMismatch)
			name := s.setAside("home-1", "")
			s.noVolume()
			s.wantAside(name, "kept", "by hand")
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil))
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
			s.wantAside(name, "kept", "by hand")
			s.removeHome()
			s.wantAside(name, "kept", "by hand")
		},
		"aside/home of another claim": func(s *suite) {
			s.create()
			s.settle()
			name := s.setAside("home-2", "home-1")
			s.noVolume()
			if diff := cmp.Diff(s.Homes.Seed, s.Homes.Aside(s.T, name)); diff != "" {
				s.Fatalf("set aside (-want +got):\n%s", diff)
			}
			spec := s.volumeSpec()
			spec.Claim = "home-2"
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, spec, nil))
			s.wantVolume("home-2", true)
		},
		"aside/home of no workspace": func(s *suite) {
			s.create()
			s.setAside("", "home-1")
			s.noVolume()
		},
		"aside/own home is kept": func(s *suite) {
			s.create()
			name, err := s.Runtime.SetAside(s.ctx, s.id, "home-1", "", nil)
			s.ok("SetAside", err)
			if name != "" {
				s.Fatalf("the home was set aside as %s", name)
			}
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
			s.noAside()
		},
		"aside/newer home is kept": func(s *suite) {
			s.create()
			for _, found := range []string{"", "home-0"} {
				_, err := s.Runtime.SetAside(s.ctx, s.id, "home-0", found, nil)
				s.is("SetAside", err, runtime.ErrVolumeMismatch)
			}
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
			s.noAside()
		},
		"aside/no blocking volume": func(s *suite) {
			name, err := s.Runtime.SetAside(s.ctx, s.id, "home-1", "", nil)
			s.ok("SetAside", err)
			if name != "" {
				s.Fatalf("nothing was set aside as %s", name)
			}
			s.noAside()
			s.nothingRemains()
		},
		"aside/twice in a row": func(s *suite) {
			s.tidy()
			s.Homes.PutForeign(s.T, s.id)
			s.Homes.FillForeign(s.T, s.id, "kept", "first")
			first := s.setAside("home-1", "")
			s.Homes.PutForeign(s.T, s.id)
			s.Homes.FillForeign(s.T, s.id, "kept", "second")
			second := s.setAside("home-1", "")
			if first == second {
				s.Fatalf("both are %s", first)
			}
			s.wantAside(first, "kept", "first")
			s.wantAside(second, "kept", "second")
		},
		"aside/in use by a container": func(s *suite) {
			s.create()
			c := s.start()
			_, err := s.Runtime.SetAside(s.ctx, s.id, "home-2", "home-1", nil)
			s.is("SetAside", err, runtime.ErrConflict)
			if !strings.Contains(err.Error(), s.id.ContainerName()) {
				s.Fatalf("SetAside: %v, which does not name the container", err)
			}
			s.noAside()
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))
			s.setAside("home-2", "home-1")
		},
		"aside/volume of another installation": func(s *suite) {
			s.create()
			_, err := s.Neighbour.SetAside(s.ctx, s.id, "home-2", "home-1", nil)
			s.is("SetAside", err, runtime.ErrVolumeMismatch)
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
			name := s.setAside("home-2", "home-1")
			list, err := s.Neighbour.Asides(s.ctx)
			s.ok("Asides", err)
			if s.Storage != "local-dir" && slices.ContainsFunc(list, func(a runtime.Aside) bool { return a.Name == name }) {
				s.Fatalf("the neighbour lists %s", name)
			}
		},
	}
}

// setAside sets the blocking volume aside and checks that it is listed.
func (s *suite) setAside(claim, found string) string {
	s.Helper()
	name, err := s.Runtime.SetAside(s.ctx, s.id, claim, found, nil)
	if name != "" {
		s.Cleanup(func() { s.Homes.TakeAside(s.T, name) })
	}
	s.ok("SetAside", err)
	for _, a := range s.asides() {
		if a.Name != name {
			continue
		}
		if a.Workspace != s.id || a.Storage != s.Storage || !a.Complete || a.Since.IsZero() {
			s.Fatalf("listed as %+v", a)
		}
		return name
	}
	s.Fatalf("%q is not listed: %+v", name, s.asides())
	return ""
}

func (s *suite) asides() []runtime.Aside {
	s.Helper()
	list, err := s.Runtime.Asides(s.ctx)
	s.ok("Asides", err)
	return slices.DeleteFunc(list, func(a runtime.Aside) bool { return a.Workspace != s.id })
}

func (s *suite) noAside() {
	s.Helper()
	if list := s.asides(); len(list) > 0 {
		s.Fatalf("set aside: %+v", list)
	}
}

func (s *suite) wantAside(name, path, content string) {
	s.Helper()
	files := s.Homes.Aside(s.T, name)
	if !slices.ContainsFunc(files, func(f File) bool { return f.Path == path && f.Content == content }) {
		s.Fatalf("%s holds %+v", name, files)
	}
}
