package runtimetest

import (
	"errors"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// backupTests test the jobs that run while a home is in use, or without a home.
func backupTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"backup/beside the running workspace": func(s *suite) {
			s.createLive()
			c := s.start()
			s.write("notes", "one")
			spec := s.backupSpec("read notes", "wait go", "exit 0")
			job := s.startJob(spec)
			s.until(func() bool { return s.printed(job.ID, "one") })
			s.write("notes", "two")
			s.put(spec, "go")
			s.wantReport(job.ID, 0, "one")
			got := s.job()
			got.Created = time.Time{}
			want := runtime.Job{ID: job.ID, Workspace: s.id, Claim: "backup-1", Kind: runtime.JobBackup, VolumeClaim: "home-1", Key: "manifest-1"}
			if diff := cmp.Diff(want, got); diff != "" {
				s.Fatalf("job as listed (-want +got):\n%s", diff)
			}
			if got := s.container(); got.ID != c.ID || got.State != runtime.ContainerRunning {
				s.Fatalf("container = %+v", got)
			}
		},
		"backup/delays neither start nor stop": func(s *suite) {
			s.createLive()
			job := s.runningBackup()
			c := s.start()
			s.answers(c)
			if !s.Remote { // in a cluster the start ends it, since its node may not be the workspace's
				if got := s.job(); got.ID != job.ID || !got.Running {
					s.Fatalf("job = %+v, want that %s runs", got, job.ID)
				}
			}
			for _, j := range s.jobs() {
				s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, j.ID))
			}
			job = s.runningBackup()
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))
			s.noContainer()
			if got := s.job(); got.ID != job.ID || !got.Running {
				s.Fatalf("job = %+v, want that %s runs", got, job.ID)
			}
		},
		"backup/ignored by calls that leave the home": func(s *suite) {
			s.createLive()
			job := s.runningBackup()
			s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil))
			s.settle()
			if got := s.job(); got.ID != job.ID || !got.Running {
				s.Fatalf("job = %+v, want that %s runs", got, job.ID)
			}
		},
		"backup/ended by a fingerprint": func(s *suite) {
			s.createLive()
			before := s.fingerprint()
			job := s.runningBackup()
			after, err := s.Runtime.Fingerprint(s.ctx, s.id, "home-1", nil)
			s.ok("Fingerprint", err)
			if after != before {
				s.Fatalf("fingerprint = %s, want %s", after, before)
			}
			s.ended(job)
		},
		"backup/ended by a change of owner": func(s *suite) {
			s.createLive()
			job := s.runningBackup()
			spec := runtime.OwnSpec{Workspace: s.id, VolumeClaim: "home-1", UID: ownUID, From: []uint32{workspace.ArchivedUID, 0}}
			s.ok("OwnHome", s.Runtime.OwnHome(s.ctx, spec, nil))
			s.ended(job)
			s.wantHome(ownedBy(s.Homes.Seed, ownUID))
		},
		"backup/ended by an archive": func(s *suite) {
			s.createLive()
			job := s.runningBackup()
			archive := s.startJob(s.archiveSpec("say packed", "exit 0"))
			s.wantReport(archive.ID, 0, "packed")
			if got := s.job(); got.ID != archive.ID {
				s.Fatalf("job = %+v, want only %s", got, archive.ID)
			}
			s.ended(job)
		},
		"backup/ended by a removal": func(s *suite) {
			s.createLive()
			job := s.runningBackup()
			s.removeHome()
			s.ended(job)
			s.nothingRemains()
		},
		"backup/ended by setting aside": func(s *suite) {
			s.createLive()
			job := s.runningBackup()
			name := s.setAside("home-2", "home-1")
			s.ended(job)
			if diff := cmp.Diff(s.Homes.Seed, s.Homes.Aside(s.T, name)); diff != "" {
				s.Fatalf("set aside (-want +got):\n%s", diff)
			}
		},
		"backup/ended one is kept until the removal": func(s *suite) {
			s.createLive()
			job := s.startJob(s.backupSpec("say done", "exit 0"))
			s.wantReport(job.ID, 0, "done")
			s.fingerprint()
			archive := s.startJob(s.archiveSpec("exit 0"))
			s.wantReport(archive.ID, 0)
			if list := s.jobs(); len(list) != 2 {
				s.Fatalf("jobs = %+v, want both", list)
			}
			s.wantReport(job.ID, 0, "done")
			s.removeHome()
			s.nothingRemains()
		},
		"backup/created but not started blocks nothing": func(s *suite) {
			s.createLive()
			half := s.Jobs.Half(s.T, s.backupSpec("exit 0"))
			s.noJob()
			s.answers(s.start())
			job := s.startJob(s.backupSpec("say again", "exit 0"))
			if job.ID == half {
				s.Fatal("a job without its input was adopted")
			}
			s.wantReport(job.ID, 0, "again")
		},
		"backup/needs a live home": func(s *suite) {
			s.tidy()
			refused := func(spec runtime.JobSpec) {
				s.Helper()
				_, err := s.Runtime.StartJob(s.ctx, spec, nil)
				s.is("StartJob", err, runtime.ErrVolumeMismatch)
				s.noJob()
			}
			refused(s.backupSpec("exit 0"))
			s.nothingRemains()
			s.ok("CreateEmptyVolume", s.Runtime.CreateEmptyVolume(s.ctx, s.volumeSpec()))
			refused(s.backupSpec("exit 0"))
			s.removeHome()
			s.createLive()
			other := s.backupSpec("exit 0")
			other.VolumeClaim = "home-2"
			refused(other)
			s.wantHome(s.Homes.Seed)
		},
		"backup/not while a job needs the home alone": func(s *suite) {
			s.createLive()
			spec := s.archiveSpec("wait go", "exit 0")
			archive := s.startJob(spec)
			_, err := s.Runtime.StartJob(s.ctx, s.backupSpec("exit 0"), nil)
			s.is("StartJob", err, runtime.ErrBusy)
			if got := s.job(); got.ID != archive.ID || !got.Running {
				s.Fatalf("job = %+v, want that %s runs", got, archive.ID)
			}
			s.put(spec, "go")
			s.wantReport(archive.ID, 0)
			s.wantReport(s.startJob(s.backupSpec("say stored", "exit 0")).ID, 0, "stored")
		},
		"backup/one at a time": func(s *suite) {
			s.createLive()
			job := s.runningBackup()
			if again := s.startJob(s.waitingBackup()); again.ID != job.ID {
				s.Fatalf("second start = %+v, want %s", again, job.ID)
			}
			next := s.backupSpec("exit 0")
			next.Claim, next.Key = "backup-2", "manifest-2"
			_, err := s.Runtime.StartJob(s.ctx, next, nil)
			s.is("StartJob", err, runtime.ErrConflict)
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			s.ended(job)
			s.wantReport(s.startJob(next).ID, 0)
		},
		"backup/has the home read-only": func(s *suite) {
			s.createLive()
			job := s.startJob(s.backupSpec("write stray x", "exit 0"))
			s.wantReport(job.ID, s.Jobs.ReadOnlyCode, s.report(job.ID)...)
			s.wantHome(s.Homes.Seed)
		},
		"drill/in an empty folder of its own": func(s *suite) {
			s.tidy()
			job := s.startJob(s.drillSpec("write a restored", "read a", "exit 0"))
			s.wantReport(job.ID, 0, "restored")
			got := s.job()
			got.Created = time.Time{}
			want := runtime.Job{ID: job.ID, Workspace: s.id, Claim: "drill-1", Kind: runtime.JobDrill, Key: "manifest-1"}
			if diff := cmp.Diff(want, got); diff != "" {
				s.Fatalf("job as listed (-want +got):\n%s", diff)
			}
			s.noVolume()
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			s.nothingRemains()
			job = s.startJob(s.drillSpec("read a", "exit 0"))
			if code, err := s.Runtime.FollowJob(s.ctx, job.ID, func([]byte) {}); err != nil || code == 0 {
				s.Fatalf("FollowJob = %d, %v: the folder of an earlier drill was found", code, err)
			}
		},
		"drill/conflicts with nothing": func(s *suite) {
			s.createLive()
			spec := s.archiveSpec("wait go", "exit 0")
			archive := s.startJob(spec)
			job := s.startJob(s.drillSpec("wait for ever", "exit 0"))
			s.put(spec, "go")
			s.wantReport(archive.ID, 0)
			s.answers(s.start())
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, s.container().ID, 0))
			s.fingerprint()
			s.removeHome()
			if list := s.jobs(); !slices.ContainsFunc(list, func(j runtime.Job) bool { return j.ID == job.ID && j.Running }) {
				s.Fatalf("jobs = %+v, want that %s runs", list, job.ID)
			}
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			s.nothingRemains()
		},
	}
}

func (s *suite) createLive() {
	s.Helper()
	s.create()
	s.settle()
}

func (s *suite) backupSpec(lines ...string) runtime.JobSpec {
	spec := s.jobSpec(runtime.JobBackup, lines)
	spec.Claim, spec.Key = "backup-1", "manifest-1"
	return spec
}

func (s *suite) drillSpec(lines ...string) runtime.JobSpec {
	spec := s.jobSpec(runtime.JobDrill, lines)
	spec.Claim, spec.Key, spec.Storage, spec.VolumeClaim = "drill-1", "manifest-1", "", ""
	return spec
}

func (s *suite) waitingBackup() runtime.JobSpec {
	return s.backupSpec("say begun", "wait for ever", "exit 0")
}

// runningBackup starts a backup that does not end by itself.
func (s *suite) runningBackup() runtime.Job {
	s.Helper()
	job := s.startJob(s.waitingBackup())
	s.until(func() bool { return s.printed(job.ID, "begun") })
	return job
}

// ended checks that the job was killed and removed.
func (s *suite) ended(job runtime.Job) {
	s.Helper()
	if slices.ContainsFunc(s.jobs(), func(j runtime.Job) bool { return j.ID == job.ID }) {
		s.Fatalf("job %s is listed", job.ID)
	}
	if _, err := s.Runtime.FollowJob(s.ctx, job.ID, func([]byte) {}); !errors.Is(err, runtime.ErrNotFound) {
		s.Fatalf("FollowJob = %v, want %v", err, runtime.ErrNotFound)
	}
}
