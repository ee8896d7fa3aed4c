package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/kubetest"
	"codehub/internal/workspace"
)

// While the API server is away nothing is known, and no list is empty. A node that is cut off
// keeps its workspace's Pod, also where a call removes it, until an administrator confirms
// that the node is dead: its container may go on writing.
func testOutages(t *testing.T, c *cluster) {
	r := c.runtime(t)
	home := newHome(t, r)
	made, err := r.StartContainer(t.Context(), startOf(home), nil)
	check(t, err)

	c.Stop(kubetest.APIServer)
	harness.Eventually(t, "the outage is noticed", func() bool {
		list, err := r.Containers(t.Context())
		if err == nil && len(list) != 1 {
			t.Fatalf("without an API server there are %d containers", len(list))
		}
		return err != nil
	})
	_, containers := r.Containers(t.Context())
	_, volumes := r.Volumes(t.Context())
	_, jobs := r.Jobs(t.Context())
	for what, err := range map[string]error{"Containers": containers, "Volumes": volumes, "Jobs": jobs, "Prepare": r.Prepare(t.Context())} {
		if !errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("%s without an API server: %v", what, err)
		}
	}
	c.Cluster.Start(kubetest.APIServer)
	harness.Eventually(t, "the cluster responds again", func() bool {
		list, err := r.Containers(t.Context())
		return err == nil && len(list) == 1 && list[0].State == runtime.ContainerRunning
	})

	p, err := r.named(t.Context(), home.Workspace.ContainerName(), roleWorkspace)
	check(t, err)
	node := 1
	if p.Spec.NodeName == "node2" {
		node = 2
	}
	c.CutNode(node)
	harness.EventuallyWithin(t, time.Minute, "the workspace says that its node does not respond", func() bool {
		list, err := r.Containers(t.Context())
		return err == nil && len(list) == 1 && list[0].LostNode == p.Spec.NodeName
	})
	harness.EventuallyWithin(t, 2*time.Minute, "the workspace has ended", func() bool {
		list, err := r.Containers(t.Context())
		return err == nil && len(list) == 1 && list[0].State == runtime.ContainerExited && strings.Contains(list[0].Detail, "taint")
	})
	var waits *runtime.BusyError
	if err := r.RemoveContainer(t.Context(), made.ID, 0); !errors.As(err, &waits) || waits.Step != runtime.StepWaitingNode || !strings.Contains(waits.Reason, p.Spec.NodeName) {
		t.Errorf("RemoveContainer on a node that does not respond: %v", err)
	}
	next := startOf(home)
	next.Claim = "start-2"
	if _, err := r.StartContainer(t.Context(), next, nil); !errors.Is(err, runtime.ErrConflict) {
		t.Errorf("a second start on the home: %v", err)
	}
	if _, err := r.StartJob(t.Context(), archiveOf(home), nil); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("a job on the home: %v", err)
	}

	want := []runtime.LostNode{{Name: p.Spec.NodeName, Workspaces: []workspace.ID{home.Workspace}}}
	found, err := r.LostNodes(t.Context())
	if err != nil || len(found) != 1 || found[0].Since.IsZero() || !cmp.Equal(want, found, cmpopts.IgnoreFields(runtime.LostNode{}, "Since")) {
		t.Errorf("LostNodes: %+v, %v; want %+v", found, err, want)
	}
	if _, err := r.NodeIsDead(t.Context(), fmt.Sprintf("node%d", 3-node)); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("NodeIsDead of a node that responds: %v", err)
	}
	if _, err := c.runtime(t).NodeIsDead(t.Context(), p.Spec.NodeName); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("NodeIsDead of another installation: %v", err)
	}
	r.confirmAfter = time.Hour
	if _, err := r.NodeIsDead(t.Context(), p.Spec.NodeName); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("NodeIsDead of a node that has just stopped responding: %v", err)
	}
	r.confirmAfter = 0
	if n, err := r.NodeIsDead(t.Context(), p.Spec.NodeName); err != nil || n != 1 {
		t.Fatalf("NodeIsDead: %d, %v", n, err)
	}
	if found, err := r.LostNodes(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("LostNodes afterwards: %+v, %v", found, err)
	}
	check(t, r.RemoveContainer(t.Context(), made.ID, 0))
	if _, err := r.StartContainer(t.Context(), next, nil); err != nil {
		t.Errorf("start on another node: %v", err)
	}
	if moved, err := r.named(t.Context(), p.Name, roleWorkspace); err != nil || moved.Spec.NodeName == p.Spec.NodeName {
		t.Errorf("the workspace is on the dead node: %v", err)
	}
}
