package e2e

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"codehub/api"
)

// A container and a volume whose label names an unknown workspace are listed as
// orphans. The container is removed after CODEHUB_ORPHAN_DELAY, the volume
// stays. Other workspaces are not affected.
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
	orphan := uuid.Must(uuid.NewV7()).String()
	labelled := func(labels map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range labels {
			out[k] = v
		}
		out["codehub.workspace"] = orphan
		return out
	}
	volume := "ws-" + orphan + "-home"
	if _, err := s.docker.VolumeCreate(ctx, client.VolumeCreateOptions{Name: volume, Labels: labelled(home.Volume.Labels)}); err != nil {
		t.Fatal(err)
	}
	config := *real.Container.Config
	config.Labels = labelled(config.Labels)
	config.Entrypoint = []string{"/testserver"} // it does not mount the agent's volume
	made, err := s.docker.ContainerCreate(ctx, client.ContainerCreateOptions{Config: &config, Name: "codehub-ws-" + orphan})
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
			if o.WorkspaceID == orphan {
				out[o.Kind] = o
			}
		}
		return out
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(90 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not within 90 s; orphans: %+v", what, list())
			}
		}
	}
	var l map[string]api.Orphan
	wait("both are listed", func() bool { l = list(); return l["container"].Name == made.ID && l["volume"].Name == volume })
	if l["container"].RemovedAfter == nil || l["volume"].RemovedAfter != nil {
		t.Errorf("want a removal time for the container alone: %+v", l)
	}
	seen := l["container"].FirstSeenAt
	wait("the container is removed", func() bool { _, ok := list()["container"]; return !ok })
	if took := time.Since(seen); took < 4*time.Second {
		t.Errorf("the container was removed after %s, before the delay of 4 s", took)
	}
	if _, err := s.docker.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{}); err == nil {
		t.Error("the container still exists")
	}
	if _, err := s.docker.VolumeInspect(ctx, volume, client.VolumeInspectOptions{}); err != nil {
		t.Errorf("the orphaned volume: %v", err)
	}
	s.expect(id, "work")
	if _, err := s.docker.VolumeRemove(ctx, volume, client.VolumeRemoveOptions{}); err != nil {
		t.Error(err)
	}
	wait("the volume is not listed any more", func() bool { return len(list()) == 0 })
	status, err := s.api.AdminStatus(ctx)
	if err != nil || len(status.Servers) != 1 || !status.Servers[0].Leads || status.Servers[0].Backends["engine"].State != api.BreakerClosed || status.Phases["RUNNING"] != 1 {
		t.Errorf("administrators' status: %+v, %v", status, err)
	}
}
