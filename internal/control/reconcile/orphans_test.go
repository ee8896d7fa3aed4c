package reconcile_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

// orphan creates a home and a container of a workspace that the database does not
// have.
func (w *world) orphan() workspace.ID {
	w.Helper()
	id := workspace.ID(uuid.Must(uuid.NewV7()).String())
	err := w.fake.CreateVolume(w.Context(), runtime.VolumeSpec{
		Workspace: id, Storage: workspace.StorageDockerVolume, Claim: "home", Image: runtimetest.DefaultImage,
	}, nil)
	if err == nil {
		_, err = w.fake.StartContainer(w.Context(), runtime.ContainerSpec{
			UID:       1000,
			Workspace: id, Claim: "start", Image: runtimetest.DefaultImage, Storage: workspace.StorageDockerVolume, VolumeClaim: "home", Secret: "s",
		}, nil)
	}
	if err != nil {
		w.Fatal(err)
	}
	return id
}

// orphansOf returns the recorded orphans of the workspace by kind.
func (w *world) orphansOf(id workspace.ID) map[string]postgres.Orphan {
	w.Helper()
	list, _, err := w.DB.Orphans(w.Context(), workspace.System, postgres.Page{})
	if err != nil {
		w.Fatal(err)
	}
	out := map[string]postgres.Orphan{}
	for _, o := range list {
		if o.WorkspaceID == string(id) {
			out[o.Kind] = o
		}
	}
	return out
}

func (w *world) hasContainer(id workspace.ID) bool {
	w.Helper()
	list, err := w.fake.Containers(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	for _, k := range list {
		if k.Workspace == id {
			return true
		}
	}
	return false
}

// An orphan is recorded when it is observed. Its container is removed after a delay
// that survives a change of leaders; its home is kept.
func TestOrphansAreRemovedAfterDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.orphanDelay = time.Hour })
	id := w.orphan()
	stop := w.lead()
	w.awaitTrue("written down", func() bool { return len(w.orphansOf(id)) == 2 })
	first := w.orphansOf(id)
	if k, v := first["container"], first["volume"]; k.Kept || k.Detail != "running" || !v.Kept || v.Name != id.VolumeName() {
		t.Fatalf("%+v", first)
	}
	stop()
	w.Exec(`UPDATE orphans SET first_seen_at = first_seen_at - interval '59 minutes'`)
	stop = w.lead()
	w.awaitCalls("Containers", 20)
	if again := w.orphansOf(id)["container"].FirstSeenAt; !again.Equal(first["container"].FirstSeenAt.Add(-59 * time.Minute)) {
		t.Errorf("first seen at %s, then at %s", first["container"].FirstSeenAt, again)
	}
	if !w.hasContainer(id) {
		t.Fatal("removed before the delay")
	}
	stop()
	w.Exec(`UPDATE orphans SET first_seen_at = first_seen_at - interval '2 minutes'`)
	w.lead()
	w.awaitTrue("removed", func() bool { return !w.hasContainer(id) })
	w.awaitTrue("crossed out", func() bool { return len(w.orphansOf(id)) == 1 })
	w.Exec(`UPDATE orphans SET first_seen_at = first_seen_at - interval '1 year'`)
	w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
	if _, ok := w.fake.Home(id); !ok {
		t.Error("a home was removed")
	}
	w.fake.TakeVolume(id)
	w.awaitTrue("the home crossed out", func() bool { return len(w.orphansOf(id)) == 0 })
}

// owning claims that every workspace exists, as if it had been created since the
// observation.
type owning struct {
	*postgres.Controller
	asked chan struct{}
}

func (o owning) Owned(context.Context, workspace.ID) (bool, error) {
	select {
	case o.asked <- struct{}{}:
	default:
	}
	return true, nil
}

func TestOrphanIsCheckedBeforeRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.orphanDelay = time.Millisecond })
	asked := make(chan struct{}, 1)
	w.wrap = func(c *postgres.Controller) reconcile.Rows { return owning{c, asked} }
	id := w.orphan()
	stop := w.lead()
	for range 3 {
		<-asked
	}
	stop()
	if !w.hasContainer(id) || w.fake.Calls("RemoveContainer") != 0 {
		t.Error("removed although the database has its workspace")
	}
}

// With the wrong database no container is removed, and the status says so.
func TestManyRecordedOrphansAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ids []workspace.ID
	for range 6 {
		ids = append(ids, w.orphan())
	}
	c, _ := w.leads()
	w.awaitStatus(c, "6 of 6 containers are orphans", func(s reconcile.Status) string { return s.Orphans })
	w.awaitTrue("written down", func() bool { return len(w.orphansOf(ids[0])) == 2 })
	w.awaitCalls("Containers", w.fake.Calls("Containers")+20)
	for _, id := range ids {
		if o := w.orphansOf(id)["container"]; !o.Kept || !strings.Contains(o.Detail, "check that this is the right database") || !w.hasContainer(id) {
			t.Errorf("%s: %+v", id, o)
		}
	}
	for _, id := range ids[1:] {
		w.fake.TakeContainer(id)
	}
	w.awaitStatus(c, "", func(s reconcile.Status) string { return s.Orphans })
	w.awaitTrue("the last one removed", func() bool { return !w.hasContainer(ids[0]) })
}

func TestOrphanedJobIsRemovedAfterDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.orphanDelay = time.Hour })
	id := w.orphan()
	w.fake.TakeContainer(id)
	job, err := w.fake.StartJob(t.Context(), runtime.JobSpec{
		Workspace: id, Claim: "archive", Kind: runtime.JobArchive, Storage: workspace.StorageDockerVolume, VolumeClaim: "home", Key: "k",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := w.lead()
	w.awaitTrue("written down", func() bool { return w.orphansOf(id)["job"].Name == job.ID })
	if jobs, err := w.fake.Jobs(t.Context()); err != nil || len(jobs) != 1 {
		t.Fatalf("%v, %v", jobs, err)
	}
	stop()
	w.Exec(`UPDATE orphans SET first_seen_at = first_seen_at - interval '2 hours'`)
	w.lead()
	w.awaitTrue("ended", func() bool { jobs, err := w.fake.Jobs(t.Context()); return err == nil && len(jobs) == 0 })
	w.awaitTrue("crossed out", func() bool { return len(w.orphansOf(id)) == 1 })
}

// counting counts writes of orphans.
type counting struct {
	*postgres.Controller
	saved chan int
}

func (c counting) SaveOrphans(ctx context.Context, seen []postgres.Orphan) ([]postgres.Orphan, error) {
	c.saved <- len(seen)
	return c.Controller.SaveOrphans(ctx, seen)
}

// The list is not written at every tick.
func TestOrphansAreWrittenOnChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.orphanDelay = time.Hour })
	saved := make(chan int, 1000)
	w.wrap = func(c *postgres.Controller) reconcile.Rows { return counting{c, saved} }
	id := w.orphan()
	stop := w.lead()
	w.awaitCalls("Containers", 30)
	w.fake.EndContainer(id)
	w.awaitTrue("exited", func() bool { return w.orphansOf(id)["container"].Detail == "exited" })
	w.awaitCalls("Containers", w.fake.Calls("Containers")+30)
	stop()
	if n := len(saved); n > 3 { // one each, and one that another tick may have requested
		t.Errorf("written %d times", n)
	}
}
