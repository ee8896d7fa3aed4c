package docker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/dockertest"
	"codehub/internal/harness"
	"codehub/internal/runtime"
	"codehub/internal/runtime/runtimetest"
	"codehub/internal/workspace"
)

// blocked is a workspace whose home is blocked by a volume without labels.
func blocked(t *testing.T, r *Runtime) (workspace.ID, direct) {
	t.Helper()
	h, id := direct{r: r, storage: workspace.StorageDockerVolume}, workspace.ID(uuid.NewString())
	h.putForeign(t, id)
	t.Cleanup(func() {
		_, _ = r.api.VolumeRemove(context.Background(), id.VolumeName(), client.VolumeRemoveOptions{})
	})
	h.put(t, id, "content", "leftover")
	return id, h
}

func hasContent(files []runtimetest.File, content string) bool {
	return slices.ContainsFunc(files, func(f runtimetest.File) bool { return f.Path == "content" && f.Content == content })
}

// asidesOf lists the complete copies of the volumes that blocked a workspace.
func asidesOf(t *testing.T, h direct, id workspace.ID) []string {
	t.Helper()
	list, err := h.r.Asides(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		if a.Workspace != id || !a.Complete {
			continue
		}
		if !hasContent(h.aside(t, a.Name), "leftover") {
			t.Errorf("%s is complete and has different content", a.Name)
		}
		out = append(out, a.Name)
	}
	return out
}

// A former leader that was stopped at any call of SetAside, and continues after its
// successor has set the volume aside and restored the home, changes neither.
func TestSetAsideByFormerLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	e := newFaultProxy(t)
	next := newRuntime(t, nil)
	old := newRuntime(t, func(c *Config) {
		c.Host, c.Installation, c.DataDir = e.host, next.cfg.Installation, ""
	})
	if _, err := old.Jobs(t.Context()); err != nil { // the first request negotiates the API version
		t.Fatal(err)
	}
	var h direct
	tc := lateCase{
		before: func(l *lateHome) {
			h = direct{r: l.next, storage: l.storage}
			h.putForeign(l.T, l.id)
			h.put(l.T, l.id, "content", "leftover")
		},
		late: func(ctx context.Context, l *lateHome) error {
			_, err := l.old.SetAside(ctx, l.id, "", "", nil)
			return err
		},
		meanwhile: func(l *lateHome) {
			_, err := l.next.SetAside(l.Context(), l.id, "", "", nil)
			l.ok("SetAside", err)
			l.claim = "home-2"
			// A call that is stopped while it waits for the copy continues
			// concurrently: it may free the name once more before the job holds the
			// volume.
			for try := 0; ; try++ {
				l.ok("CreateEmptyVolume", l.next.CreateEmptyVolume(l.Context(), l.volume(l.claim)))
				job, err := l.next.StartJob(l.Context(), l.restoring("op", l.claim, "key", "kept"), nil)
				if errors.Is(err, runtime.ErrVolumeMismatch) && try < 5 {
					continue
				}
				l.ok("StartJob", err)
				code, err := l.next.FollowJob(l.Context(), job.ID, func([]byte) {})
				if err != nil || code != 0 {
					l.Fatalf("the job ended with %d, %v", code, err)
				}
				break
			}
			l.ok("MarkRestored", l.next.MarkRestored(l.Context(), l.id, l.claim, "key"))
		},
		after: func(l *lateHome) {
			if v := l.listed(); v.Claim != "home-2" || l.content() != "kept" {
				l.Fatalf("volume %+v holds %q", v, l.content())
			}
			if found := asidesOf(l.T, h, l.id); len(found) == 0 {
				l.Fatal("no volume is set aside")
			}
		},
	}
	for n := 1; runLate(t, tc, e, old, next, workspace.StorageDockerVolume, n); n++ {
		if n > 60 {
			t.Fatal("the call does not end")
		}
	}
}

// After a failure of any request the next attempt finishes.
func TestSetAsideResumesAfterEveryFault(t *testing.T) {
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, nil)
	faulty := newRuntime(t, func(c *Config) { c.Host, c.Installation, c.DataDir = e.host, r.cfg.Installation, "" })
	if _, err := faulty.Jobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := int64(1); ; n++ {
		id, h := blocked(t, r)
		var requests atomic.Int64
		f := func(http.ResponseWriter, *http.Request) bool {
			if requests.Add(1) == n {
				panic(http.ErrAbortHandler)
			}
			return false
		}
		e.fault.Store(&f)
		_, err := faulty.SetAside(t.Context(), id, "", "", nil)
		e.fault.Store(nil)
		if err == nil && requests.Load() < n {
			t.Logf("%d requests", n-1)
			return
		}
		if err != nil && !errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("request %d: %v", n, err)
		}
		found, err := r.listHomes(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if complete := asidesOf(t, h, id); len(complete) == 0 && !hasContent(h.home(t, id), "leftover") {
			t.Fatalf("request %d: the blocking volume and its copy are both missing", n)
		}
		if _, err := r.SetAside(t.Context(), id, "", "", nil); err != nil {
			t.Fatalf("request %d, repeated: %v", n, err)
		}
		if found, err = r.listHomes(t.Context(), id); err != nil || found.foreign[id] {
			t.Fatalf("request %d: the volume still blocks the home: %v", n, err)
		}
		if len(asidesOf(t, h, id)) == 0 {
			t.Fatalf("request %d: no volume is set aside", n)
		}
		if n > 60 {
			t.Fatal("the call does not end")
		}
	}
}

// The error names the container that uses the volume, and nothing is copied.
func TestSetAsideNamesContainerInUse(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	id, h := blocked(t, r)
	for name, running := range map[string]bool{"codehub-test-dump-" + string(id): true, "codehub-test-kept-" + string(id): false} {
		c, err := r.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name:   name,
			Config: &container.Config{Image: harness.TestImage()},
			HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{
				{Type: mount.TypeVolume, Source: id.VolumeName(), Target: "/looked-at", ReadOnly: true},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.discard(context.Background(), c.ID) })
		if running {
			if _, err := r.api.ContainerStart(t.Context(), c.ID, client.ContainerStartOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		_, err = r.SetAside(t.Context(), id, "", "", nil)
		if !errors.Is(err, runtime.ErrConflict) || !strings.Contains(err.Error(), name) {
			t.Errorf("held by %s: %v", name, err)
		}
		if err := r.discard(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := r.Asides(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("set aside: %+v, %v", list, err)
	}
	if !hasContent(h.home(t, id), "leftover") {
		t.Error("the volume has changed")
	}
}

// An interrupted copy is recognized and replaced.
func TestSetAsideReplacesPartialCopy(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	id, h := blocked(t, r)
	image, err := r.ensureHelperImage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	partial := "ws-" + string(id) + "-aside-20260101T000000Z-0000"
	if _, err := r.api.ContainerCreate(t.Context(), r.copyOptions(id, image, partial, "attempt", "")); err != nil {
		t.Fatal(err)
	}
	list, err := r.Asides(t.Context())
	if err != nil || len(list) != 1 || list[0].Complete || list[0].Name != partial {
		t.Fatalf("listed: %+v, %v", list, err)
	}
	name, err := r.SetAside(t.Context(), id, "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err = r.Asides(t.Context())
	if err != nil || len(list) != 1 || !list[0].Complete || list[0].Name != name || list[0].Entries != 2 || list[0].Bytes != int64(len("leftover")) {
		t.Errorf("listed: %+v, %v", list, err)
	}
	if !hasContent(h.aside(t, name), "leftover") {
		t.Error("the copy has different content")
	}
}

// After docker container prune the copy is still complete and gets a new holder.
// Copies that administrators have removed are not listed.
func TestAsidesRecreatesMissingHolder(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	id, h := blocked(t, r)
	name, err := r.SetAside(t.Context(), id, "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.discard(t.Context(), asideHolderName(name)); err != nil {
		t.Fatal(err)
	}
	list, err := r.Asides(t.Context())
	if err != nil || len(list) != 1 || !list[0].Complete || list[0].Entries == 0 {
		t.Fatalf("set aside: %+v, %v", list, err)
	}
	if users, err := r.users(t.Context(), name); err != nil || len(users) != 1 {
		t.Errorf("held by %+v, %v", users, err)
	}
	if len(asidesOf(t, h, id)) != 1 {
		t.Error("the copy has no content")
	}
	if err := r.discard(t.Context(), asideHolderName(name)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.api.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err := r.Asides(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("set aside: %+v, %v", list, err)
	}
	if _, err := r.api.VolumeInspect(t.Context(), asideRecordName(name), client.VolumeInspectOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("the record of a removed copy: %v", err)
	}
}

// The workspace got another home while the removal of the first had begun: neither
// its remains nor its record block the workspace.
func TestSetAsideDropsInterruptedRemoval(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(l *lateHome, h direct){
		"volume with labels": func(*lateHome, direct) {},
		"no volume":          func(l *lateHome, h direct) { h.takeVolume(l.T, l.id) },
		"volume without labels": func(l *lateHome, h direct) {
			h.takeVolume(l.T, l.id)
			_, err := l.next.api.VolumeCreate(l.Context(), client.VolumeCreateOptions{Name: l.id.VolumeName()})
			l.ok("VolumeCreate", err)
			putFile(l.T, l.mountpoint(l.id.VolumeName()), "foreign")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRuntime(t, nil)
			l := newLate(t, r, workspace.StorageDockerVolume)
			l.seed("home-1")
			h := direct{r: r, storage: l.storage}
			h.halfRemove(t, l.id, "home-1")
			back(l, h)
			if v := l.listed(); v.Claim != "home-1" || !v.Removing {
				t.Fatalf("volume %+v", v)
			}
			_, err := r.SetAside(t.Context(), l.id, "", "home-1", nil)
			l.ok("SetAside", err)
			l.ok("CreateVolume", r.CreateVolume(t.Context(), l.volume("home-2"), nil))
			if v := l.listed(); v.Claim != "home-2" || v.Removing {
				t.Errorf("volume %+v", v)
			}
		})
	}
}

// A volume that blocks a home may be nested deeper than Docker can remove.
func TestSetAsideOfDeepVolume(t *testing.T) {
	t.Parallel()
	const depth, descriptors = 3_000, 1024
	d := dockertest.Start(t, dockertest.Options{Image: harness.TestImage(), NoFile: descriptors})
	r := newRuntime(t, func(c *Config) { c.Host = d.Host })
	l := newLate(t, r, workspace.StorageDockerVolume)
	l.seed("home-1")
	l.settle()
	nest(t, l.mountpoint(l.id.VolumeName()), depth)
	name, err := r.SetAside(t.Context(), l.id, "home-2", "home-1", nil)
	l.ok("SetAside", err)
	if list, err := r.Asides(t.Context()); err != nil || len(list) != 1 || list[0].Name != name || list[0].Entries < depth {
		t.Errorf("set aside: %+v, %v", list, err)
	}
	if _, err := r.api.VolumeInspect(t.Context(), l.id.VolumeName(), client.VolumeInspectOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("the volume that blocked the home: %v", err)
	}
	l.ok("removeTree", removeTree(t.Context(), l.mountpoint(name), nil))
}

// A server dies while it removes the original of a complete copy: the next attempt
// finishes, and there is one copy with the whole content.
func TestSetAsideInterruptedWhileRemoving(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	l := newLate(t, r, workspace.StorageDockerVolume)
	l.seed("home-1")
	l.settle()
	h := direct{r: r, storage: l.storage}
	h.put(t, l.id, "content", "kept")
	record := r.labels(roleAsideRecord, l.id, "home-1")
	record[labelAside] = "ws-" + string(l.id) + "-aside-earlier"
	_, err := r.api.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: asideRecordName(record[labelAside]), Labels: record})
	l.ok("VolumeCreate", err)
	h.halfRemove(t, l.id, "home-1")
	name, err := r.SetAside(t.Context(), l.id, "home-2", "home-1", nil)
	l.ok("SetAside", err)
	if name != record[labelAside] {
		t.Errorf("set aside as %q, want the copy of the earlier attempt", name)
	}
	if _, err := r.api.VolumeInspect(t.Context(), l.id.VolumeName(), client.VolumeInspectOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("the original: %v", err)
	}
}
