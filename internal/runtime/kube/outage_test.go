package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/harness"
	"codehub/internal/kubetest"
	"codehub/internal/runtime"
)

// While the API server is away nothing is known, and no list is empty. A node that is cut off
// keeps its workspace's Pod, also where a call removes it, until an administrator confirms
// that the node is dead: its container goes on writing.
func TestOutages(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	r := c.runtime(t)
	home := newHome(t, r)
	made, err := r.StartContainer(t.Context(), startOf(home), nil)
	if err != nil {
		t.Fatal(err)
	}

	c.Stop(kubetest.APIServer)
	harness.EventuallyWithin(t, 5*time.Second, "the outage is noticed", func() bool {
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
	harness.EventuallyWithin(t, time.Minute, "the cluster responds again", func() bool {
		list, err := r.Containers(t.Context())
		return err == nil && len(list) == 1 && list[0].State == runtime.ContainerRunning
	})

	p, err := r.named(t.Context(), home.Workspace.ContainerName(), roleWorkspace)
	if err != nil {
		t.Fatal(err)
	}
	node := 1
	if p.Spec.NodeName == "node2" {
		node = 2
	}
	c.CutNode(node)
	harness.EventuallyWithin(t, 2*time.Minute, "the workspace has ended", func() bool {
		list, err := r.Containers(t.Context())
		return err == nil && len(list) == 1 && list[0].State == runtime.ContainerExited && strings.Contains(list[0].Detail, "taint")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := r.RemoveContainer(ctx, made.ID, 0); err == nil {
		t.Error("a container on a node that does not respond counts as removed")
	}
	next := startOf(home)
	next.Claim = "start-2"
	if _, err := r.StartContainer(t.Context(), next, nil); !errors.Is(err, runtime.ErrConflict) {
		t.Errorf("a second start on the home: %v", err)
	}
	if _, err := r.StartJob(t.Context(), archiveOf(home)); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("a job on the home: %v", err)
	}

	now := int64(0) // the administrator says that the node is dead
	if err := c.Client.CoreV1().Pods(namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	if err := r.RemoveContainer(t.Context(), made.ID, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.StartContainer(t.Context(), next, nil); err != nil {
		t.Errorf("start on another node: %v", err)
	}
	if moved, err := r.named(t.Context(), p.Name, roleWorkspace); err != nil || moved.Spec.NodeName == p.Spec.NodeName {
		t.Errorf("the workspace is on the dead node: %v", err)
	}
}
