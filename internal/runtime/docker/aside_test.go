package docker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

// blocked is a workspace whose home is blocked by a volume without labels.
func blocked(t *testing.T, r *Runtime) (workspace.ID, direct) {
	t.Helper()
	h, id := direct{r: r, storage: workspace.StorageDockerVolume}, workspace.ID(uuid.NewString())
	h.putForeign(t, id)
	t.Cleanup(func() {
		_, _ = r.engine.API.VolumeRemove(context.Background(), id.VolumeName(), client.VolumeRemoveOptions{})
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
	check(t, err)
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

// After a failure of any request the next attempt finishes.
func TestSetAsideResumesAfterEveryFault(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, nil)
	faulty := newRuntime(t, func(c *Config) { c.Host, c.Installation, c.DataDir = e.host, r.cfg.Installation, "" })
	must(t)(faulty.jobs.Jobs(t.Context()))
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
		if complete := asidesOf(t, h, id); len(complete) == 0 && !hasContent(h.home(t, id), "leftover") {
			t.Fatalf("request %d: the blocking volume and its copy are both missing", n)
		}
		if _, err := r.SetAside(t.Context(), id, "", "", nil); err != nil {
			t.Fatalf("request %d, repeated: %v", n, err)
		}
		volumes, err := r.Volumes(t.Context())
		if err != nil || slices.ContainsFunc(volumes, func(v runtime.Volume) bool { return v.Workspace == id && v.Foreign }) {
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

// An interrupted copy is recognized and replaced.
func TestSetAsideReplacesPartialCopy(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	id, h := blocked(t, r)
	image, err := r.helper.Image(t.Context())
	check(t, err)
	partial := "ws-" + string(id) + "-aside-20260101T000000Z-0000"
	labels := r.engine.Labels(engine.RoleCopy, id, "")
	labels[engine.LabelAside] = partial
	must(t)(r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: engine.CopyName(id), Config: &container.Config{Image: image, Labels: labels},
		HostConfig: &container.HostConfig{Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: id.VolumeName(), Target: runtime.CopyFromDir, ReadOnly: true},
			{
				Type: mount.TypeVolume, Source: partial, Target: runtime.CopyToDir,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: r.engine.Labels(engine.RoleAside, id, "")},
			},
		}},
	}))
	list, err := r.Asides(t.Context())
	if err != nil || len(list) != 1 || list[0].Complete || list[0].Name != partial {
		t.Fatalf("listed: %+v, %v", list, err)
	}
	name, err := r.SetAside(t.Context(), id, "", "", nil)
	check(t, err)
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
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	id, h := blocked(t, r)
	name, err := r.SetAside(t.Context(), id, "", "", nil)
	check(t, err)
	check(t, r.engine.Discard(t.Context(), engine.AsideHolderName(name)))
	list, err := r.Asides(t.Context())
	if err != nil || len(list) != 1 || !list[0].Complete || list[0].Entries == 0 {
		t.Fatalf("set aside: %+v, %v", list, err)
	}
	if users, err := r.engine.Users(t.Context(), name); err != nil || len(users) != 1 {
		t.Errorf("held by %+v, %v", users, err)
	}
	if len(asidesOf(t, h, id)) != 1 {
		t.Error("the copy has no content")
	}
	check(t, r.engine.Discard(t.Context(), engine.AsideHolderName(name)))
	must(t)(r.engine.API.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}))
	if list, err := r.Asides(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("set aside: %+v, %v", list, err)
	}
	if _, err := r.engine.API.VolumeInspect(t.Context(), engine.AsideRecordName(name), client.VolumeInspectOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("the record of a removed copy: %v", err)
	}
}

// The workspace got another home while the removal of the first had begun: neither
// its remains nor its record block the workspace.
func TestSetAsideDropsInterruptedRemoval(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, back := range map[string]func(l *lateHome, h direct){
		"volume with labels": func(*lateHome, direct) {},
		"no volume":          func(l *lateHome, h direct) { h.takeVolume(l.T, l.id) },
		"volume without labels": func(l *lateHome, h direct) {
			h.takeVolume(l.T, l.id)
			_, err := l.next.engine.API.VolumeCreate(l.Context(), client.VolumeCreateOptions{Name: l.id.VolumeName()})
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

// A server dies while it removes the original of a complete copy: the next attempt
// finishes, and there is one copy with the whole content.
func TestSetAsideInterruptedWhileRemoving(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	l := newLate(t, r, workspace.StorageDockerVolume)
	l.seed("home-1")
	l.settle()
	h := direct{r: r, storage: l.storage}
	h.put(t, l.id, "content", "kept")
	record := r.engine.Labels(engine.RoleAsideRecord, l.id, "home-1")
	record[engine.LabelAside] = "ws-" + string(l.id) + "-aside-earlier"
	_, err := r.engine.API.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: engine.AsideRecordName(record[engine.LabelAside]), Labels: record})
	l.ok("VolumeCreate", err)
	h.halfRemove(t, l.id, "home-1")
	name, err := r.SetAside(t.Context(), l.id, "home-2", "home-1", nil)
	l.ok("SetAside", err)
	if name != record[engine.LabelAside] {
		t.Errorf("set aside as %q, want the copy of the earlier attempt", name)
	}
	if _, err := r.engine.API.VolumeInspect(t.Context(), l.id.VolumeName(), client.VolumeInspectOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("the original: %v", err)
	}
}
