package e2e

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"codehub/api"
)

// A container that says it is a workspace's, which the database does not have,
// is told of and removed after CODEHUB_ORPHAN_DELAY; its home is told of and
// stays. Workspaces that there are feel nothing of it.
func TestOrphansAreListedAndRemoved(t *testing.T) {
	t.Parallel()
	s := start(t, "CODEHUB_ORPHAN_DELAY=4s", "COORDINATOR_IDLE_INTERVAL=1s", "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.awaitPhase(id, "RUNNING")
	s.write(id, "work")

	ctx := t.Context()
	real, err := s.docker.ContainerInspect(ctx, "codehub-ws-"+id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	home, err := s.docker.VolumeInspect(ctx, "ws-"+id+"-home", client.VolumeInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stranger := uuid.Must(uuid.NewV7()).String()
	labelled := func(labels map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range labels {
			out[k] = v
		}
		out["codehub.workspace"] = stranger
		return out
	}
	volume := "ws-" + stranger + "-home"
	if _, err := s.docker.VolumeCreate(ctx, client.VolumeCreateOptions{Name: volume, Labels: labelled(home.Volume.Labels)}); err != nil {
		t.Fatal(err)
	}
	config := *real.Container.Config
	config.Labels = labelled(config.Labels)
	made, err := s.docker.ContainerCreate(ctx, client.ContainerCreateOptions{Config: &config, Name: "codehub-ws-" + stranger})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.docker.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}

	list := func() map[string]api.Orphan {
		found, err := s.api.Orphans(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]api.Orphan{}
		for _, o := range found {
			if o.WorkspaceID == stranger {
				out[o.Kind] = o
			}
		}
		return out
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(90 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not in time; %+v", what, list())
			}
		}
	}
	wait("both are told of", func() bool { l := list(); return l["container"].Name == made.ID && l["volume"].Name == volume })
	if l := list(); l["container"].RemovedAfter == nil || l["volume"].RemovedAfter != nil {
		t.Errorf("%+v", l)
	}
	seen := list()["container"].FirstSeenAt
	wait("the container is removed", func() bool { _, ok := list()["container"]; return !ok })
	if took := time.Since(seen); took < 4*time.Second {
		t.Errorf("removed after %s", took)
	}
	if _, err := s.docker.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{}); err == nil {
		t.Error("it is still there")
	}
	if _, err := s.docker.VolumeInspect(ctx, volume, client.VolumeInspectOptions{}); err != nil {
		t.Errorf("its home: %v", err)
	}
	s.expect(id, "work")
	if _, err := s.docker.VolumeRemove(ctx, volume, client.VolumeRemoveOptions{}); err != nil {
		t.Error(err)
	}
	wait("the home is crossed out", func() bool { return len(list()) == 0 })
	status, err := s.api.AdminStatus(ctx)
	if err != nil || len(status.Servers) != 1 || !status.Servers[0].Leads || status.Servers[0].Backends["engine"].State != api.BreakerClosed || status.Phases["RUNNING"] != 1 {
		t.Errorf("%+v, %v", status, err)
	}
}
