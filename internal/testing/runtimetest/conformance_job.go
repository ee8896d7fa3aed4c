package runtimetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
	"codehub/internal/testing/runtimetest/script"
)

func jobTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"job/reads its input, reports, and ends": func(s *suite) {
			s.create()
			job := s.startJob(s.archiveSpec("say one", "complain aside", "say two", "exit 7"))
			if job.ID == "" || !job.Running || job.Created.IsZero() {
				s.Fatalf("job = %+v", job)
			}
			for range 2 { // the second time after its end
				if !s.Remote {
					s.wantReport(job.ID, 7, "one", "two")
					continue
				}
				said := slices.DeleteFunc(s.report(job.ID), func(line string) bool { return line == "aside" })
				if !slices.Equal(said, []string{"one", "two"}) {
					s.Fatalf("the job printed %q", said)
				}
				s.wantReport(job.ID, 7, s.report(job.ID)...)
			}
			want := runtime.Job{
				ID: job.ID, Workspace: s.id, Claim: "op-1", Kind: runtime.JobArchive, VolumeClaim: "home-1", Key: "key-1",
			}
			got := s.job()
			got.Created = time.Time{}
			if diff := cmp.Diff(want, got); diff != "" {
				s.Fatalf("job as listed (-want +got):\n%s", diff)
			}
		},
		"job/lists its bucket socket": func(s *suite) {
			if s.Remote {
				s.Skip("jobs reach no folder of this machine")
			}
			s.create()
			spec := s.archiveSpec("exit 0")
			spec.BucketDir = s.TempDir()
			job := s.startJob(spec)
			s.wantReport(job.ID, 0)
			if got := s.job().BucketDir; job.BucketDir != spec.BucketDir || got != spec.BucketDir {
				s.Fatalf("socket's folder = %q, listed %q, want %q", job.BucketDir, got, spec.BucketDir)
			}
		},
		"job/same claim returns the same job": func(s *suite) {
			s.create()
			spec := s.archiveSpec("wait go", "exit 0")
			job := s.startJob(spec)
			again := s.startJob(spec)
			if again.ID != job.ID || !again.Running || !s.job().Running {
				s.Fatalf("second start = %+v, want %+v", again, job)
			}
			s.put(spec, "go")
			s.wantReport(job.ID, 0)
			if again = s.startJob(spec); again.ID != job.ID || again.Running {
				s.Fatalf("start of one that ended = %+v, want %s", again, job.ID)
			}
		},
		"job/another claim conflicts": func(s *suite) {
			s.create()
			first := s.archiveSpec("wait go", "exit 0")
			job := s.startJob(first)
			next := s.archiveSpec("exit 0")
			next.Claim, next.Key = "op-2", "key-2"
			_, err := s.Runtime.StartJob(s.ctx, next, nil)
			s.is("StartJob", err, runtime.ErrConflict)
			s.put(first, "go")
			s.wantReport(job.ID, 0)
			_, err = s.Runtime.StartJob(s.ctx, next, nil)
			s.is("StartJob", err, runtime.ErrConflict)
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			if got := s.startJob(next); got.ID == job.ID || got.Claim != "op-2" {
				s.Fatalf("job = %+v", got)
			}
		},
		"job/created but not started is replaced": func(s *suite) {
			s.create()
			spec := s.archiveSpec("say again", "exit 0")
			for _, claim := range []string{"op-1", "op-0"} {
				other := spec
				other.Claim = claim
				half := s.Jobs.Half(s.T, other)
				s.noJob() // it is neither running nor ended
				_, err := s.Runtime.FollowJob(s.ctx, half, func([]byte) {})
				s.is("FollowJob of one that never ran", err, runtime.ErrNotFound)
				job := s.startJob(spec)
				if job.ID == half {
					s.Fatal("a job without its input was adopted")
				}
				s.wantReport(job.ID, 0, "again")
				s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			}
		},
		"job/created but not started blocks nothing": func(s *suite) {
			s.createEmpty()
			half := s.Jobs.Half(s.T, s.restoreSpec("wipe", "exit 0"))
			for range 2 {
				s.create()
				s.wantVolume("home-1", true)
				half = s.Jobs.Half(s.T, s.restoreSpec("wipe", "exit 0"))
			}
			s.wantReport(s.startJob(s.archiveSpec("say packed", "exit 0")).ID, 0, "packed")
			s.removeHome()
			s.nothingRemains()
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, half))
		},
		"job/does not run beside the workspace": func(s *suite) {
			s.create()
			s.settle()
			half := s.Jobs.Half(s.T, s.archiveSpec("exit 0"))
			c := s.start()
			s.answers(c)
			_, err := s.Runtime.FollowJob(s.ctx, half, func([]byte) {})
			s.is("FollowJob of a job that the start has removed", err, runtime.ErrNotFound)
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))

			job := s.startJob(s.archiveSpec("wait for ever", "exit 0"))
			_, err = s.Runtime.StartContainer(s.ctx, s.containerSpec(), nil)
			s.is("StartContainer while a job runs", err, runtime.ErrBusy)
			if got := s.job(); got.ID != job.ID || !got.Running {
				s.Fatalf("job = %+v, want that %s runs", got, job.ID)
			}
			s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			s.answers(s.start())
		},
		"job/missing input is reported": func(s *suite) {
			s.create()
			spec := s.archiveSpec()
			spec.Input = []byte("say half of wh")
			var said []string
			if s.Remote {
				said = []string{"no orders"}
			}
			s.wantReport(s.startJob(spec).ID, script.CodeIncomplete, said...)
		},
		"job/removed twice while running": func(s *suite) {
			s.create()
			job := s.startJob(s.archiveSpec("wait for ever", "exit 0"))
			followed := make(chan error, 1)
			go func() {
				code, err := s.Runtime.FollowJob(s.ctx, job.ID, func([]byte) {})
				if err == nil && code == 0 {
					err = errors.New("a job that was killed ended well")
				} else if err == nil || errors.Is(err, runtime.ErrNotFound) {
					err = nil
				}
				followed <- err
			}()
			for range 2 {
				s.ok("RemoveJob", s.Runtime.RemoveJob(s.ctx, job.ID))
			}
			s.noJob()
			s.ok("FollowJob", <-followed)
			_, err := s.Runtime.FollowJob(s.ctx, job.ID, func([]byte) {})
			s.is("FollowJob of one that is gone", err, runtime.ErrNotFound)
		},
		"job/killed": func(s *suite) {
			s.create()
			job := s.startJob(s.archiveSpec("say begun", "wait for ever", "exit 0"))
			s.until(func() bool { return s.printed(job.ID, "begun") })
			s.Jobs.End(s.T, job.ID)
			code, err := s.Runtime.FollowJob(s.ctx, job.ID, func([]byte) {})
			if err != nil || code == 0 {
				s.Fatalf("FollowJob = %d, %v", code, err)
			}
			if got := s.job(); got.Running || got.ID != job.ID {
				s.Fatalf("job = %+v", got)
			}
		},
		"job/following is cancelled": func(s *suite) {
			s.create()
			job := s.startJob(s.archiveSpec("say begun", "wait for ever", "exit 0"))
			ctx, cancel := context.WithCancel(s.ctx)
			_, err := s.Runtime.FollowJob(ctx, job.ID, func([]byte) { cancel() })
			s.is("FollowJob", err, context.Canceled)
			if errors.Is(err, runtime.ErrUnreachable) || !s.job().Running {
				s.Fatalf("error = %v, job = %+v", err, s.job())
			}
		},
		"job/long output and lines": func(s *suite) {
			s.create()
			job := s.startJob(s.archiveSpec("count 5000", "long 100000", "long 3000000", "say done", "exit 0"))
			var got []string
			_, err := s.Runtime.FollowJob(s.ctx, job.ID, func(l []byte) { got = append(got, string(l)) })
			s.ok("FollowJob", err)
			if len(got) != 5002 || got[0] != "1" || got[4999] != "5000" || len(got[5000]) != 100000 || got[5001] != "done" {
				s.Fatalf("%d lines; the last ones begin with %.20q", len(got), got[max(0, len(got)-3):])
			}
		},
		"job/archive has the home read-only": func(s *suite) {
			s.create()
			job := s.startJob(s.archiveSpec("write stray x", "exit 0"))
			s.wantReport(job.ID, s.Jobs.ReadOnlyCode, s.report(job.ID)...)
			s.wantHome(s.Homes.Seed)
		},
		"job/only an archive writes to the archive folder": func(s *suite) {
			if s.Remote {
				s.Skip("jobs reach no folder of this machine")
			}
			s.create()
			spec := s.archiveSpec("put object content", "exit 0")
			s.wantReport(s.startJob(spec).ID, 0)
			raw, err := os.ReadFile(filepath.Join(spec.ObjectDir, "object"))
			if err != nil || string(raw) != "content" {
				s.Fatalf("object = %q, %v", raw, err)
			}
			s.removeHome()
			s.createEmpty()
			s.wantReport(s.startJob(s.restoreSpec("write kept x", "exit 0")).ID, 0)
		},
		"job/missing or other home": func(s *suite) {
			s.tidy()
			spec := s.archiveSpec("exit 0")
			for range 2 {
				_, err := s.Runtime.StartJob(s.ctx, spec, nil)
				s.is("StartJob without a volume", err, runtime.ErrVolumeMismatch)
				s.nothingRemains()
			}
			s.create()
			spec.VolumeClaim = "home-2"
			_, err := s.Runtime.StartJob(s.ctx, spec, nil)
			s.is("StartJob", err, runtime.ErrVolumeMismatch)
			spec.Kind = runtime.JobRestore
			_, err = s.Runtime.StartJob(s.ctx, spec, nil)
			s.is("StartJob", err, runtime.ErrVolumeMismatch)
			s.noJob()
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"job/unknown kind": func(s *suite) {
			s.create()
			spec := s.archiveSpec("exit 0")
			spec.Kind = "dance"
			if job, err := s.Runtime.StartJob(s.ctx, spec, nil); err == nil {
				s.Fatalf("job = %+v", job)
			}
			s.noJob()
		},
		"job/not while a container runs": func(s *suite) {
			s.create()
			s.Containers.HalfStart(s.T, s.containerSpec())
			for _, make := range []func() runtime.Container{s.container, s.start} {
				c := make()
				if _, err := s.Runtime.StartJob(s.ctx, s.archiveSpec("exit 0"), nil); err == nil {
					s.Fatalf("a home is archived under container %+v", c)
				}
				s.noJob()
			}
			s.wantHome(s.Homes.Seed)
		},
		"job/of another installation": func(s *suite) {
			s.create()
			job := s.startJob(s.archiveSpec("wait for ever", "exit 0"))
			jobs, err := s.Neighbour.Jobs(s.ctx)
			s.ok("Jobs", err)
			if slices.ContainsFunc(jobs, func(j runtime.Job) bool { return j.Workspace == s.id }) {
				s.Fatalf("the neighbour lists %+v", jobs)
			}
			if err := s.Neighbour.RemoveJob(s.ctx, job.ID); err == nil {
				s.Fatal("removing another installation's job gave no error")
			}
			_, err = s.Neighbour.FollowJob(s.ctx, job.ID, func([]byte) {})
			s.is("FollowJob", err, runtime.ErrNotFound)
			if _, err := s.Neighbour.StartJob(s.ctx, s.archiveSpec("exit 0"), nil); !errors.Is(err, runtime.ErrConflict) && !errors.Is(err, runtime.ErrVolumeMismatch) {
				s.Fatalf("StartJob of the neighbour: %v", err)
			}
			s.is("MarkRestored", s.Neighbour.MarkRestored(s.ctx, s.id, "home-1", "key-1"), runtime.ErrVolumeMismatch)
			s.is("CreateEmptyVolume", s.Neighbour.CreateEmptyVolume(s.ctx, s.volumeSpec()), runtime.ErrVolumeMismatch)
			if !s.job().Running {
				s.Fatal("the job has ended")
			}
		},
		"disks/listed": func(s *suite) {
			disks, err := s.Runtime.Disks(s.ctx)
			s.ok("Disks", err)
			if s.Remote {
				return
			}
			if len(disks) == 0 {
				s.Fatal("no disk")
			}
			for _, d := range disks {
				if d.Name == "" || d.Total <= 0 || d.Free < 0 || d.Free > d.Total {
					s.Fatalf("disk = %+v", d)
				}
			}
		},
	}
}

func (s *suite) jobSpec(kind runtime.JobKind, lines []string) runtime.JobSpec {
	if s.object == "" && !s.Remote {
		s.object = s.TempDir()
	}
	return runtime.JobSpec{
		Workspace: s.id, Claim: "op-1", Kind: kind, Storage: s.Storage, VolumeClaim: "home-1", Key: "key-1",
		Input: []byte(strings.Join(lines, "\n") + "\n"), ObjectDir: s.object,
	}
}

func (s *suite) archiveSpec(lines ...string) runtime.JobSpec {
	return s.jobSpec(runtime.JobArchive, lines)
}

func (s *suite) restoreSpec(lines ...string) runtime.JobSpec {
	return s.jobSpec(runtime.JobRestore, lines)
}

func (s *suite) startJob(spec runtime.JobSpec) runtime.Job {
	s.Helper()
	job, err := s.Runtime.StartJob(s.ctx, spec, nil)
	s.ok("StartJob", err)
	return job
}

// put writes a file that a running job may wait for.
func (s *suite) put(spec runtime.JobSpec, name string) {
	s.Helper()
	if s.Jobs.Put != nil {
		s.Jobs.Put(s.T, spec, name)
		return
	}
	s.ok("put", os.WriteFile(filepath.Join(spec.ObjectDir, name), nil, 0o644))
}

func (s *suite) jobs() []runtime.Job {
	s.Helper()
	list, err := s.Runtime.Jobs(s.ctx)
	s.ok("Jobs", err)
	return slices.DeleteFunc(list, func(j runtime.Job) bool { return j.Workspace != s.id })
}

// job returns the workspace's only listed job.
func (s *suite) job() runtime.Job {
	s.Helper()
	list := s.jobs()
	if len(list) != 1 {
		s.Fatalf("jobs = %+v, want one", list)
	}
	return list[0]
}

func (s *suite) noJob() {
	s.Helper()
	if list := s.jobs(); len(list) != 0 {
		s.Fatalf("jobs = %+v", list)
	}
}

func (s *suite) report(jobID string) []string {
	s.Helper()
	var out []string
	_, err := s.Runtime.FollowJob(s.ctx, jobID, func(l []byte) { out = append(out, string(l)) })
	s.ok("FollowJob", err)
	return out
}

func (s *suite) wantReport(jobID string, code int, want ...string) {
	s.Helper()
	var got []string
	exit, err := s.Runtime.FollowJob(s.ctx, jobID, func(l []byte) { got = append(got, string(l)) })
	s.ok("FollowJob", err)
	if exit != code || !slices.Equal(got, want) {
		s.Fatalf("job ended with %d and printed %q; want %d, %q", exit, got, code, want)
	}
}

// printed reports whether a running job has printed the line.
func (s *suite) printed(jobID, line string) bool {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	found := false
	_, _ = s.Runtime.FollowJob(ctx, jobID, func(l []byte) {
		if string(l) == line {
			found = true
			cancel()
		}
	})
	return found
}

func (s *suite) until(done func() bool) {
	s.Helper()
	for !done() {
		if s.ctx.Err() != nil {
			s.Fatal("it never came to be")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *suite) createEmpty() {
	s.Helper()
	s.tidy()
	s.ok("CreateEmptyVolume", s.Runtime.CreateEmptyVolume(s.ctx, s.volumeSpec()))
}

// restored restores the key to a new home with a file in it, without marking it.
func (s *suite) restored(key string) runtime.Job {
	s.Helper()
	s.createEmpty()
	spec := s.restoreSpec("wipe", "write from "+key, "exit 0")
	spec.Claim, spec.Key = "op-"+key, key
	job := s.startJob(spec)
	s.wantReport(job.ID, 0)
	return job
}

// marked restores the key and marks the home.
func (s *suite) marked(key string) runtime.Job {
	s.Helper()
	job := s.restored(key)
	s.ok("MarkRestored", s.mark(key))
	return job
}

func (s *suite) wantRestored(key string) {
	s.Helper()
	s.listed(runtime.Volume{Claim: "home-1", Marker: key})
	s.wantFile("from", key)
}

// wantFile checks a file in the home.
func (s *suite) wantFile(path, content string) {
	s.Helper()
	home := s.Homes.Content(s.T, s.id)
	i := slices.IndexFunc(home, func(f File) bool { return f.Path == path })
	if i < 0 || home[i].Content != content {
		s.Fatalf("home = %+v, want %s = %q", home, path, content)
	}
}

func (s *suite) mark(key string) error {
	return s.Runtime.MarkRestored(s.ctx, s.id, "home-1", key)
}
