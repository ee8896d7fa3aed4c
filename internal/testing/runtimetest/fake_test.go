package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/runtimetest/script"
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
		Runtime: f, Neighbour: f.Neighbour(), Down: down, Storage: storage, Image: DefaultImage,
		Homes: Homes{
			Limits: true, Grows: true, Seed: DefaultHome(),
			Content: func(t *testing.T, id workspace.ID) []File {
				files, ok := f.Home(id)
				if !ok {
					t.Fatal("there is no volume")
				}
				return files
			},
			Take: func(_ *testing.T, id workspace.ID) { f.TakeVolume(id) },
			HalfSeed: func(t *testing.T, spec runtime.VolumeSpec) {
				wantCrash(t, crashing("CreateVolume/seed").CreateVolume(t.Context(), spec, nil))
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
		},
		Containers: Containers{
			HalfStart: func(t *testing.T, spec runtime.ContainerSpec) {
				_, err := crashing("StartContainer/start").StartContainer(t.Context(), spec, nil)
				wantCrash(t, err)
			},
			End:         func(_ *testing.T, id workspace.ID) { f.EndContainer(id) },
			Take:        func(_ *testing.T, id workspace.ID) { f.TakeContainer(id) },
			Environment: func(_ *testing.T, id workspace.ID) (string, map[string]string) { return f.Environment(id) },
			Write: func(t *testing.T, id workspace.ID, _ runtime.Upstream, path, content string) {
				if err := f.Write(id, path, content); err != nil {
					t.Fatal(err)
				}
			},
		},
		Jobs: Jobs{
			Half: func(t *testing.T, spec runtime.JobSpec) string {
				_, err := crashing("StartJob/start").StartJob(t.Context(), spec, nil)
				wantCrash(t, err)
				f.w.mu.Lock()
				defer f.w.mu.Unlock()
				return f.w.jobs[jobName{spec.Kind, spec.Workspace}].ID
			},
			End: func(_ *testing.T, jobID string) { f.EndJob(jobID) },
		},
		Images: Images{
			Missing: "codehub/missing:latest",
			Pullable: func(*testing.T) string {
				ref := fmt.Sprintf("registry.test/image:%d", images.Add(1))
				f.AddRemoteImage(ref, DefaultHome(), 1000)
				return ref
			},
			Republish: func(_ *testing.T, ref string) { f.AddRemoteImage(ref, DefaultHome(), 1000) },
			Take:      func(_ *testing.T, id string) { f.TakeImage(id) },
		},
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
			for name := range f.w.jobs {
				if name.id == id {
					out = append(out, string(name.kind)+" job")
				}
			}
			return out
		},
	}
}

// editing is lines as a script.
func editing(lines []string) []byte { return []byte(strings.Join(lines, "\n") + "\nexit 0\n") }
