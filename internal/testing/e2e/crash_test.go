package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// The server is killed with SIGKILL during each operation and restarted. Every
// operation completes, and another running workspace is not touched. It takes 30 s or more,
// for five starts of a server with the embedded database.
func TestKilledDuringEachOperation(t *testing.T) {
	t.Parallel()
	s := start(t, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")
	bystander := s.create(api.CreateWorkspace{Name: "bystander"})
	s.awaitPhase(bystander, "RUNNING")
	s.write(bystander, "bystander's work")
	before := s.containerOf(bystander)

	// killDuring kills the server as soon as the API shows the operation, or
	// 300 ms after the request if the operation is too short to be seen.
	killDuring := func(id, operation string) {
		deadline := time.Now().Add(300 * time.Millisecond)
		for time.Now().Before(deadline) {
			if w, err := s.api.Get(t.Context(), id); err == nil && w.Operation == operation {
				break
			}
		}
		s.Kill()
		s.restart()
	}
	rounds := 1
	if harness.Verifying() {
		rounds = 2
	}
	for round := range rounds {
		id := s.create(api.CreateWorkspace{Name: fmt.Sprint("victim", round)})
		killDuring(id, "PROVISIONING")
		s.await(id, "STARTING or RUNNING", func(w api.Workspace) bool { return w.Operation == "STARTING" || w.Phase == "RUNNING" })
		s.Kill()
		s.restart()
		w := s.awaitPhase(id, "RUNNING")
		if w.ErrorCount != 0 {
			t.Errorf("the kills counted as %d failures: %s", w.ErrorCount, str(w.ErrorMessage))
		}
		s.write(id, "work")
		s.setDesired(id, "STANDBY")
		killDuring(id, "STOPPING")
		s.awaitPhase(id, "STANDBY")
		s.setDesired(id, "RUNNING")
		killDuring(id, "STARTING")
		s.awaitPhase(id, "RUNNING")
		s.expect(id, "work")
		if _, err := s.api.Delete(t.Context(), id, true); err != nil {
			t.Fatal(err)
		}
		killDuring(id, "DELETING")
		s.remove(id)
	}
	if after := s.containerOf(bystander); after != before {
		t.Errorf("the running container was replaced: %s before, %s after", before, after)
	}
	s.expect(bystander, "bystander's work")
	s.remove(bystander)
	s.expectNothingLeft()
}

// containerOf returns the Docker id of a workspace's container and its start
// time. Both stay the same unless the container is restarted or replaced.
func (s *server) containerOf(id string) string {
	s.Helper()
	c, err := s.docker.ContainerInspect(s.Context(), workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return c.Container.ID + " " + c.Container.State.StartedAt
}

// A container that was removed is started again with its home; without its home a workspace is in
// ERROR, and gets an empty one only on request. It takes over 20 s beside other tests, as a
// workspace starts three times.
func TestContainerOrVolumeRemovedByHand(t *testing.T) {
	t.Parallel()
	storages := []string{"docker-volume"}
	if harness.Verifying() {
		storages = append(storages, "local-dir")
	}
	for _, storage := range storages {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			s := startQuick(t, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+storage, "COORDINATOR_IDLE_INTERVAL=1s")
			id := s.create(api.CreateWorkspace{Name: "one"})
			s.awaitPhase(id, "RUNNING")
			s.write(id, "work")

			// The container is recreated with its home.
			before := s.containerOf(id)
			if _, err := s.docker.ContainerRemove(t.Context(), workspace.ID(id).DockerName(), client.ContainerRemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			s.await(id, "in another container", func(api.Workspace) bool {
				c, err := s.docker.ContainerInspect(t.Context(), workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
				return err == nil && !strings.HasPrefix(before, c.Container.ID)
			})
			s.awaitPhase(id, "RUNNING")
			s.expect(id, "work")

			// Without the volume the workspace is in ERROR with DataLost,
			// and gets no empty home without a request.
			s.setDesired(id, "STANDBY")
			s.awaitPhase(id, "STANDBY")
			s.loseVolume(id, storage)
			w := s.await(id, "ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
			if str(w.ErrorReason) != "DataLost" {
				t.Errorf("error %q, want DataLost: %s", str(w.ErrorReason), str(w.ErrorMessage))
			}
			if _, err := s.api.Want(t.Context(), id, "RUNNING", false); err == nil {
				t.Error("a workspace without its home was started")
			}
			if _, err := s.api.Recover(t.Context(), id, api.Recover{}); err != nil {
				t.Fatal(err)
			}
			s.await(id, "ERROR after a new observation", func(w api.Workspace) bool { return w.Phase == "ERROR" })
			if _, err := s.api.Recover(t.Context(), id, api.Recover{Action: api.RecoverEmpty, Confirm: "another name"}); err == nil {
				t.Error("an empty home was created without confirmation")
			}
			if _, err := s.api.Recover(t.Context(), id, api.Recover{Action: api.RecoverEmpty, Confirm: "one"}); err != nil {
				t.Fatal(err)
			}
			s.awaitPhase(id, "STANDBY")
			s.setDesired(id, "RUNNING")
			s.awaitPhase(id, "RUNNING")
			if status, body := s.ide("GET", id, "/file?path=notes.txt", ""); status != 404 {
				t.Errorf("the new home is not empty: %d %q", status, body)
			}
			s.remove(id)
			s.expectNothingLeft()
		})
	}
}

// Of 200 starts at the same time with a limit of 3, exactly 3 are accepted. It takes over 20 s
// beside other tests, as eight workspaces are created first.
func TestLimitIsExact(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=3")
	const many = 200
	standby := "STANDBY"
	ids := make([]string, 8)
	for i := range ids {
		ids[i] = s.create(api.CreateWorkspace{Name: fmt.Sprint("ws", i), DesiredState: &standby})
	}
	for _, id := range ids {
		s.awaitPhase(id, "STANDBY")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	won := make(chan string, many)
	done := make(chan struct{}, many)
	for i := range many {
		go func() {
			defer func() { done <- struct{}{} }()
			if w, err := s.api.Want(ctx, ids[i%len(ids)], "RUNNING", false); err == nil {
				won <- w.ID
			}
		}()
	}
	for range many {
		<-done
	}
	close(won)
	winners := map[string]bool{}
	for id := range won {
		winners[id] = true
	}
	if len(winners) != 3 {
		t.Errorf("%d workspaces were accepted, want 3", len(winners))
	}
	for id := range winners {
		s.awaitPhase(id, "RUNNING")
	}
	f := client.Filters{}.Add("label", proc.Label(s.Installation())).Add("label", "codehub.role=workspace")
	cs, err := s.docker.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: f})
	if err != nil {
		t.Fatal(err)
	}
	if len(cs.Items) != 3 {
		t.Errorf("%d containers, want 3", len(cs.Items))
	}
}

// loseVolume removes a home and the containers that hold its volume.
func (s *server) loseVolume(id, storage string) {
	s.Helper()
	if storage == "local-dir" {
		if err := os.RemoveAll(filepath.Join(s.home, "homes", id)); err != nil {
			s.Fatal(err)
		}
		return
	}
	volume := "ws-" + id + "-home"
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		holders, err := s.docker.ContainerList(s.Context(), client.ContainerListOptions{
			All: true, Filters: client.Filters{}.Add("volume", volume),
		})
		if err != nil {
			s.Fatal(err)
		}
		for _, c := range holders.Items {
			_, err := s.docker.ContainerRemove(s.Context(), c.ID, client.ContainerRemoveOptions{})
			if err != nil && !errdefs.IsConflict(err) && !errdefs.IsNotFound(err) { // the server may be removing it too
				s.Fatal(err)
			}
		}
		_, err = s.docker.VolumeRemove(s.Context(), volume, client.VolumeRemoveOptions{})
		switch {
		case err == nil:
			return
		case !errdefs.IsConflict(err) || time.Now().After(deadline): // the server has created a new holder
			s.Fatal(err)
		}
	}
}
