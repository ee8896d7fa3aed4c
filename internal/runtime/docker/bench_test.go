package docker

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/harness"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// The benchmarks compare the runtime with plain Docker calls on the same image. Run
// them with -benchtime 20x.

func benchRuntime(b *testing.B) *Runtime {
	b.Helper()
	bin := os.Getenv("CODEHUB_TEST_BINARY") // the real agent, if there is one
	if bin == "" {
		var err error
		if bin, err = helperBinary(); err != nil {
			b.Fatal(err)
		}
	}
	r, err := New(b.Context(), Config{
		Installation: uuid.NewString(), DataDir: b.TempDir(), HelperBinary: bin,
		Settings: Settings{Pids: 4096},
		Log:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := dismantle(context.Background(), r); err != nil {
			b.Error(err)
		}
	})
	if err := r.Prepare(b.Context()); err != nil {
		b.Fatal(err)
	}
	return r
}

// bareStart is `docker create` and `docker start` on the default bridge.
func bareStart(ctx context.Context, r *Runtime, volume string) (runtime.Container, error) {
	made, err := r.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: harness.TestImage(), Labels: r.labels("bare", "", "")},
		HostConfig: &container.HostConfig{Mounts: []mount.Mount{{
			Type: mount.TypeVolume, Source: volume, Target: runtime.HomeDir,
		}}},
	})
	if err != nil {
		return runtime.Container{}, err
	}
	if _, err := r.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		return runtime.Container{}, err
	}
	info, err := r.api.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{})
	if err != nil {
		return runtime.Container{}, err
	}
	addr := info.Container.NetworkSettings.Networks["bridge"].IPAddress
	return runtime.Container{ID: made.ID, Addr: upstreamAddr(addr, runtime.IDEPort, "")}, nil
}

func bareVolume(ctx context.Context, r *Runtime) (string, error) {
	v, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: "bare-" + randomHex(8), Labels: r.labels("bare", "", "")})
	return v.Volume.Name, err
}

func healthy(ctx context.Context, r *Runtime, c runtime.Container) error {
	for {
		err := r.Probe(ctx, c)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// seededHome creates a home that a container can start on.
func seededHome(tb testing.TB, r *Runtime) runtime.ContainerSpec {
	tb.Helper()
	spec := newHome()
	err := r.CreateVolume(tb.Context(), runtime.VolumeSpec{
		Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image,
	}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return spec
}

func newHome() runtime.ContainerSpec {
	return runtime.ContainerSpec{
		Size:      workspace.Size{NanoCPUs: 2e9, Memory: 2 << 30},
		Workspace: workspace.ID(uuid.NewString()), UID: workspace.ArchivedUID, Claim: "s", Image: harness.TestImage(),
		Storage: workspace.StorageDockerVolume, VolumeClaim: "h", Secret: randomHex(32),
	}
}

func BenchmarkStart(b *testing.B) {
	r := benchRuntime(b)
	b.Run("bare", func(b *testing.B) {
		volume, err := bareVolume(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			c, err := bareStart(b.Context(), r, volume)
			if err == nil {
				err = healthy(b.Context(), r, c)
			}
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			if err := r.discard(b.Context(), c.ID); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	for _, publish := range []bool{false, true} {
		name := "codehub"
		if publish {
			name = "codehub published"
		}
		b.Run(name, func(b *testing.B) {
			r.cfg.Publish = publish
			r.forgetNetwork()
			if err := r.Prepare(b.Context()); err != nil {
				b.Fatal(err)
			}
			spec := seededHome(b, r)
			for b.Loop() {
				c, err := r.StartContainer(b.Context(), spec, nil)
				if err == nil {
					err = healthy(b.Context(), r, c)
				}
				b.StopTimer()
				if err != nil {
					b.Fatal(err)
				}
				if err := r.discard(b.Context(), c.ID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func BenchmarkCreateAndStart(b *testing.B) {
	r := benchRuntime(b)
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			volume, err := bareVolume(b.Context(), r)
			if err != nil {
				b.Fatal(err)
			}
			c, err := bareStart(b.Context(), r, volume)
			if err == nil {
				err = healthy(b.Context(), r, c)
			}
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			if err := r.discard(b.Context(), c.ID); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("codehub", func(b *testing.B) {
		for b.Loop() {
			spec := newHome()
			err := r.CreateVolume(b.Context(), runtime.VolumeSpec{
				Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image,
			}, nil)
			if err != nil {
				b.Fatal(err)
			}
			c, err := r.StartContainer(b.Context(), spec, nil)
			if err == nil {
				err = healthy(b.Context(), r, c)
			}
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			if err := r.discard(b.Context(), c.ID); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

// BenchmarkStart50 starts fifty workspaces at once.
func BenchmarkStart50(b *testing.B) {
	const n = 50
	r := benchRuntime(b)
	all := func(b *testing.B, start func(i int) (runtime.Container, error)) {
		containers := make([]runtime.Container, n)
		for b.Loop() {
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					c, err := start(i)
					if err == nil {
						err = healthy(b.Context(), r, c)
					}
					if err != nil {
						b.Error(err)
					}
					containers[i] = c
				})
			}
			wg.Wait()
			b.StopTimer()
			for _, c := range containers {
				if err := r.discard(b.Context(), c.ID); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
		}
	}
	b.Run("bare", func(b *testing.B) {
		volumes := make([]string, n)
		for i := range volumes {
			var err error
			if volumes[i], err = bareVolume(b.Context(), r); err != nil {
				b.Fatal(err)
			}
		}
		all(b, func(i int) (runtime.Container, error) { return bareStart(b.Context(), r, volumes[i]) })
	})
	b.Run("codehub", func(b *testing.B) {
		specs := make([]runtime.ContainerSpec, n)
		for i := range specs {
			specs[i] = seededHome(b, r)
		}
		all(b, func(i int) (runtime.Container, error) { return r.StartContainer(b.Context(), specs[i], nil) })
	})
}

// BenchmarkJob measures the fixed cost of a restore step by step, compared with a
// container of the same image.
func BenchmarkJob(b *testing.B) {
	bin, err := helperBinary()
	if err != nil {
		b.Fatal(err)
	}
	r := benchRuntime(b)
	r.cfg.HelperBinary = bin
	image, err := r.ensureHelperImage(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if err := bareRun(b.Context(), r, image); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("codehub", func(b *testing.B) {
		var start, follow, mark, settle, remove time.Duration
		for b.Loop() {
			id := workspace.ID(uuid.NewString())
			spec := runtime.JobSpec{
				Workspace: id, Claim: "o", Kind: runtime.JobRestore, Storage: workspace.StorageDockerVolume,
				VolumeClaim: "h", Key: "k", Input: []byte("exit 0\n"),
			}
			err := r.CreateEmptyVolume(b.Context(), runtime.VolumeSpec{Workspace: id, Storage: spec.Storage, Claim: "h"})
			began := time.Now()
			lap := func(sum *time.Duration) {
				*sum += time.Since(began)
				began = time.Now()
				if err != nil {
					b.Fatal(err)
				}
			}
			var job runtime.Job
			job, err = r.StartJob(b.Context(), spec, nil)
			lap(&start)
			_, err = r.FollowJob(b.Context(), job.ID, func([]byte) {})
			lap(&follow)
			err = r.MarkRestored(b.Context(), id, "h", "k")
			lap(&mark)
			b.StopTimer()
			began = time.Now()
			err = r.SettleVolume(b.Context(), id, "h")
			lap(&settle)
			err = r.RemoveVolume(b.Context(), id, "h", nil)
			lap(&remove)
			b.StartTimer()
		}
		for name, sum := range map[string]time.Duration{"start": start, "follow": follow, "mark": mark, "settle": settle, "remove": remove} {
			b.ReportMetric(float64(sum.Milliseconds())/float64(b.N), name+"-ms/op")
		}
	})
}

// bareRun is `docker run` of an empty script.
func bareRun(ctx context.Context, r *Runtime, image string) error {
	made, err := r.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Cmd: []string{"none", "none"}, Labels: r.labels("bare", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return err
	}
	wait := r.api.ContainerWait(ctx, made.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := r.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		return err
	}
	select {
	case err = <-wait.Error:
	case <-wait.Result:
	}
	if err != nil {
		return err
	}
	return r.discard(ctx, made.ID)
}
