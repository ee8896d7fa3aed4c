package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/agent/inside"
	"codehub/internal/runtime"
	"codehub/internal/runtime/runtimetest/script"
	"codehub/internal/workspace"
)

var errCrash = errors.New("crash")

func TestFakeConforms(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			Conformance(t, func(t *testing.T) Harness { return fakeHarness(t, storage) })
		})
	}
}

func fakeHarness(t *testing.T, storage string) Harness {
	f := NewFake()
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	f.SetAgent(func(_ workspace.ID, secret string) string {
		server := httptest.NewServer(inside.NewServer(inside.Config{Secret: secret, Version: "test", Home: t.TempDir(), Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	})
	job := func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		return script.Run(ctx, spec.Input, home, spec.ObjectDir, out, io.Discard)
	}
	f.SetJob(job)
	down := f.Neighbour()
	down.SetDown(true)
	var images atomic.Int64
	// crashing is another process of the same installation, which a crash ends.
	crashing := func(step string) *Fake {
		other := f.Neighbour()
		other.installation = f.installation
		other.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
			if op == step {
				return errCrash
			}
			return nil
		})
		return other
	}
	wantCrash := func(t *testing.T, err error) {
		t.Helper()
		if !errors.Is(err, errCrash) {
			t.Fatalf("error = %v, want the crash", err)
		}
	}
	return Harness{
		Runtime: f, Neighbour: f.Neighbour(), Down: down, Limits: true, Grows: true,
		Storage: storage, Image: DefaultImage, Seed: DefaultHome(), MissingImage: "codehub/missing:latest",
		RemoteImage: func(*testing.T) string {
			ref := fmt.Sprintf("registry.test/image:%d", images.Add(1))
			f.AddRemoteImage(ref, DefaultHome(), 1000)
			return ref
		},
		Republish: func(_ *testing.T, ref string) { f.AddRemoteImage(ref, DefaultHome(), 1000) },
		TakeImage: func(_ *testing.T, id string) { f.TakeImage(id) },
		Home: func(t *testing.T, id workspace.ID) []File {
			files, ok := f.Home(id)
			if !ok {
				t.Fatal("there is no volume")
			}
			return files
		},
		Write: func(t *testing.T, id workspace.ID, _ runtime.Upstream, path, content string) {
			if err := f.Write(id, path, content); err != nil {
				t.Fatal(err)
			}
		},
		HalfSeed: func(t *testing.T, spec runtime.VolumeSpec) {
			wantCrash(t, crashing("CreateVolume/seed").CreateVolume(t.Context(), spec, nil))
		},
		HalfStart: func(t *testing.T, spec runtime.ContainerSpec) {
			_, err := crashing("StartContainer/start").StartContainer(t.Context(), spec, nil)
			wantCrash(t, err)
		},
		Environment: func(_ *testing.T, id workspace.ID) (string, map[string]string) { return f.Environment(id) },
		HalfJob: func(t *testing.T, spec runtime.JobSpec) string {
			_, err := crashing("StartJob/start").StartJob(t.Context(), spec, nil)
			wantCrash(t, err)
			f.w.mu.Lock()
			defer f.w.mu.Unlock()
			return f.w.jobs[jobName{spec.Kind, spec.Workspace}].ID
		},
		HalfRemove: func(t *testing.T, id workspace.ID, claim string) {
			wantCrash(t, crashing("RemoveVolume/half").RemoveVolume(t.Context(), id, claim, nil))
		},
		Use: func(_ *testing.T, id workspace.ID, name string, _ bool) func() { return f.Use(id, name) },
		Edit: func(t *testing.T, id workspace.ID, lines ...string) {
			err := f.Edit(id, func(folder string) error {
				var out bytes.Buffer
				if code := script.Run(t.Context(), editing(lines), folder, "", &out, &out); code != 0 {
					return fmt.Errorf("edit ended with %d: %s", code, out.String())
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		EndJob:        func(_ *testing.T, jobID string) { f.EndJob(jobID) },
		EndContainer:  func(_ *testing.T, id workspace.ID) { f.EndContainer(id) },
		TakeContainer: func(_ *testing.T, id workspace.ID) { f.TakeContainer(id) },
		TakeVolume:    func(_ *testing.T, id workspace.ID) { f.TakeVolume(id) },
		PutForeign: func(_ *testing.T, id workspace.ID) {
			f.PutForeignVolume(id, nil)
			f.w.mu.Lock()
			defer f.w.mu.Unlock()
			f.w.volumes[id].Storage = storage
		},
		FillForeign: func(_ *testing.T, id workspace.ID, path, content string) {
			f.w.mu.Lock()
			defer f.w.mu.Unlock()
			f.w.volumes[id].files[path] = File{Path: path, Content: content}
		},
		Aside:     func(_ *testing.T, name string) []File { return f.AsideFiles(name) },
		TakeAside: func(_ *testing.T, name string) { f.TakeAside(name) },
		Remains: func(_ *testing.T, id workspace.ID) []string {
			f.w.mu.Lock()
			defer f.w.mu.Unlock()
			var out []string
			if f.w.containers[id] != nil {
				out = append(out, id.ContainerName())
			}
			if f.w.volumes[id] != nil {
				out = append(out, id.VolumeName())
			}
			for _, j := range f.w.jobsOf(id) {
				out = append(out, string(j.Kind)+" job")
			}
			return out
		},
	}
}

// editing is lines as a script.
func editing(lines []string) []byte { return []byte(strings.Join(lines, "\n") + "\nexit 0\n") }

// started returns a fake with a running workspace.
func started(t *testing.T, f *Fake) (workspace.ID, runtime.Container) {
	t.Helper()
	id := workspace.ID(uuid.NewString())
	err := f.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: "h", Image: DefaultImage}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.StartContainer(t.Context(), runtime.ContainerSpec{
		UID:       1,
		Workspace: id, Storage: workspace.StorageDockerVolume, Claim: "s", VolumeClaim: "h", Image: DefaultImage,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return id, c
}

// startedJob starts a job with its own home.
func startedJob(t *testing.T, f *Fake, kind runtime.JobKind) runtime.Job {
	t.Helper()
	id := workspace.ID(uuid.NewString())
	volume := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: "h"}
	if err := f.CreateEmptyVolume(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	job, err := f.StartJob(t.Context(), runtime.JobSpec{
		Workspace: id, Claim: "o", Kind: kind, Storage: volume.Storage, VolumeClaim: "h", Key: "k",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func TestFaults(t *testing.T) {
	t.Parallel()
	cases := map[string]func(t *testing.T, f *Fake){
		"the backend goes down in the middle of a call": func(t *testing.T, f *Fake) {
			id, c := started(t, f)
			f.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
				if op == "RemoveContainer/remove" {
					f.SetDown(true)
				}
				return nil
			})
			if err := f.RemoveContainer(t.Context(), c.ID, 0); !errors.Is(err, runtime.ErrUnreachable) {
				t.Fatalf("error = %v", err)
			}
			f.SetDown(false)
			f.SetBefore(nil)
			list, err := f.Containers(t.Context())
			if err != nil || len(list) != 1 || list[0].Workspace != id || list[0].State != runtime.ContainerExited {
				t.Fatalf("containers = %+v, %v", list, err)
			}
		},
		"a pull hangs until its caller gives up": func(t *testing.T, f *Fake) {
			f.AddHangingImage("hangs", nil)
			ctx, cancel := context.WithCancel(t.Context())
			f.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
				if op == "CreateVolume/pull" {
					cancel()
				}
				return nil
			})
			err := f.CreateVolume(ctx, runtime.VolumeSpec{Workspace: "w", Claim: "h", Image: "hangs"}, nil)
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("error = %v", err)
			}
		},
		"a pull hangs until it is released": func(t *testing.T, f *Fake) {
			release := f.AddHangingImage("hangs", DefaultHome())
			err := f.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: "w", Claim: "h", Image: "hangs"}, func(p runtime.Progress) {
				if p.Step == runtime.StepPulling && p.Total == 0 && release != nil {
					release()
					release = nil
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		"an image is refused with words": func(t *testing.T, f *Fake) {
			f.AddRefusedImage("private", "denied: log in first")
			err := f.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: "w", Claim: "h", Image: "private"}, nil)
			var pull *runtime.PullError
			if !errors.As(err, &pull) || pull.Message != "denied: log in first" {
				t.Fatalf("error = %v", err)
			}
		},
		"a container exits on start": func(t *testing.T, f *Fake) {
			id := workspace.ID(uuid.NewString())
			f.ExitOnStart(id, true)
			if err := f.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: id, Claim: "h", Image: DefaultImage}, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := f.StartContainer(t.Context(), runtime.ContainerSpec{Workspace: id, UID: 1, Claim: "s", VolumeClaim: "h", Image: DefaultImage}, nil); err != nil {
				t.Fatal(err)
			}
			list, err := f.Containers(t.Context())
			if err != nil || len(list) != 1 || list[0].State != runtime.ContainerExited {
				t.Fatalf("containers = %+v, %v", list, err)
			}
		},
		"a container is slow to answer, or never does": func(t *testing.T, f *Fake) {
			id, c := started(t, f)
			f.HealthyAfter(id, 3)
			answers := []bool{}
			for range 4 {
				answers = append(answers, f.Probe(t.Context(), c) == nil)
			}
			f.NeverHealthy(id, true)
			answers = append(answers, f.Probe(t.Context(), c) == nil)
			if !slices.Equal(answers, []bool{false, false, true, true, false}) {
				t.Fatalf("answers = %v", answers)
			}
		},
		"a wall that cannot stand stops every start": func(t *testing.T, f *Fake) {
			started(t, f)
			wall := errors.New("no nftables")
			f.SetPrepareError(wall)
			_, err := f.StartContainer(t.Context(), runtime.ContainerSpec{Workspace: "w", UID: 1}, nil)
			if !errors.Is(err, wall) || !errors.Is(f.Prepare(t.Context()), wall) {
				t.Fatalf("error = %v", err)
			}
		},
		"the backend restarts": func(t *testing.T, f *Fake) {
			_, c := started(t, f)
			f.EndAll()
			if err := f.Probe(t.Context(), c); err == nil {
				t.Fatal("an ended container answers")
			}
		},
		"a job without a function ends at once": func(t *testing.T, f *Fake) {
			job := startedJob(t, f, runtime.JobArchive)
			if code, err := f.FollowJob(t.Context(), job.ID, func([]byte) { t.Error("it printed something") }); code != 0 || err != nil {
				t.Fatal(code, err)
			}
		},
		"a job hangs until the backend restarts": func(t *testing.T, f *Fake) {
			f.SetJob(func(ctx context.Context, _ runtime.JobSpec, home string, out io.Writer) int {
				fmt.Fprintln(out, "hanging")
				<-ctx.Done()
				return 0
			})
			job := startedJob(t, f, runtime.JobRestore)
			code, err := f.FollowJob(t.Context(), job.ID, func([]byte) { go f.EndAll() })
			if code != codeKilled || err != nil {
				t.Fatal(code, err)
			}
		},
		"a killed job leaves what it did until then": func(t *testing.T, f *Fake) {
			f.SetJob(func(ctx context.Context, _ runtime.JobSpec, home string, out io.Writer) int {
				err := os.WriteFile(filepath.Join(home, "half"), []byte("ha"), 0o600)
				fmt.Fprintln(out, err)
				<-ctx.Done()
				return 0
			})
			job := startedJob(t, f, runtime.JobRestore)
			code, err := f.FollowJob(t.Context(), job.ID, func([]byte) { go f.EndJob(job.ID) })
			if code != codeKilled || err != nil {
				t.Fatal(code, err)
			}
			if content, _ := f.Read(job.Workspace, "half"); content != "ha" {
				t.Fatalf("content = %q", content)
			}
			if err := f.MarkRestored(t.Context(), job.Workspace, "h", "k"); !errors.Is(err, runtime.ErrConflict) {
				t.Fatalf("MarkRestored: %v", err)
			}
		},
		"who follows a job is cut off when the backend goes down": func(t *testing.T, f *Fake) {
			f.SetJob(func(ctx context.Context, _ runtime.JobSpec, _ string, out io.Writer) int {
				fmt.Fprintln(out, "begun")
				<-ctx.Done()
				return 0
			})
			job := startedJob(t, f, runtime.JobArchive)
			_, err := f.FollowJob(t.Context(), job.ID, func([]byte) { f.SetDown(true) })
			if !errors.Is(err, runtime.ErrUnreachable) {
				t.Fatalf("error = %v", err)
			}
			f.SetDown(false)
			if err := f.RemoveJob(t.Context(), job.ID); err != nil {
				t.Fatal(err)
			}
		},
		"a crash after a job was started finds it again": func(t *testing.T, f *Fake) {
			id, _ := started(t, f)
			f.TakeContainer(id)
			spec := runtime.JobSpec{Workspace: id, Claim: "o", Kind: runtime.JobArchive, Storage: workspace.StorageDockerVolume, VolumeClaim: "h", Key: "k"}
			f.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
				if op == "StartJob/done" {
					return errCrash
				}
				return nil
			})
			if _, err := f.StartJob(t.Context(), spec, nil); !errors.Is(err, errCrash) {
				t.Fatalf("error = %v", err)
			}
			f.SetBefore(nil)
			jobs, err := f.Jobs(t.Context())
			if err != nil || len(jobs) != 1 {
				t.Fatalf("jobs = %+v, %v", jobs, err)
			}
			if job, err := f.StartJob(t.Context(), spec, nil); err != nil || job.ID != jobs[0].ID {
				t.Fatalf("job = %+v, %v", job, err)
			}
		},
		"disks": func(t *testing.T, f *Fake) {
			want := runtime.Disk{Name: "small", Free: 1, Total: 2}
			f.SetDisks(want)
			if got, err := f.Disks(t.Context()); err != nil || len(got) != 1 || got[0] != want {
				t.Fatalf("disks = %+v, %v", got, err)
			}
		},
		"calls are counted": func(t *testing.T, f *Fake) {
			started(t, f)
			if f.Calls("CreateVolume") != 1 || f.Calls("Volumes") != 0 {
				t.Fatalf("calls = %d, %d", f.Calls("CreateVolume"), f.Calls("Volumes"))
			}
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, NewFake())
		})
	}
}
