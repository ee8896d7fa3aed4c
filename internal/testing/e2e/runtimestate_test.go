package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/kubetest"
)

// runtimeState is what a server's runtime has of workspaces. A test reads it without the
// server, which may not be running.
type runtimeState interface {
	// homeFolder returns the path of a workspace's home on this machine, "" if it has no home.
	homeFolder(s *server, id string) string
	// of lists what a workspace has: its containers or Pods, and its volumes, folders or claims.
	of(s *server, id string) []string
	// all lists what all workspaces of the server's installation have.
	all(s *server) []string
	// endJob kills or removes a storage job, and reports whether there was one.
	endJob(s *server, kind, id string, remove bool) bool
}

// homeFolder returns the path of a workspace's home on this machine, "" if it
// has no home.
func (s *server) homeFolder(id string) string {
	s.Helper()
	return s.runtime.homeFolder(s, id)
}

// resourcesOf lists what a workspace has in the runtime.
func (s *server) resourcesOf(id string) []string {
	s.Helper()
	return s.runtime.of(s, id)
}

// dockerState is that of a server with Docker.
type dockerState struct{}

func (dockerState) homeFolder(s *server, id string) string {
	s.Helper()
	local := filepath.Join(s.home, "homes", id, "home")
	if _, err := os.Stat(local); err == nil {
		return local
	}
	v, err := s.docker.VolumeInspect(s.Context(), "ws-"+id+"-home", client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return ""
	}
	if err != nil {
		s.Fatal(err)
	}
	return v.Volume.Mountpoint
}

func (dockerState) of(s *server, id string) []string {
	s.Helper()
	var out []string
	mine := client.Filters{}.Add("label", "codehub.workspace="+id)
	cs, err := s.docker.ContainerList(s.Context(), client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range cs.Items {
		out = append(out, fmt.Sprintf("container %v, %s", c.Names, c.Status))
	}
	vs, err := s.docker.VolumeList(s.Context(), client.VolumeListOptions{Filters: mine})
	if err != nil {
		s.Fatal(err)
	}
	for _, v := range vs.Items {
		out = append(out, "volume "+v.Name)
	}
	local := filepath.Join(s.home, "homes", id)
	if _, err := os.Lstat(local); err == nil {
		out = append(out, "folder "+local)
	}
	return out
}

func (dockerState) all(s *server) []string {
	s.Helper()
	id := s.Installation()
	if id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out []string
	f := client.Filters{}.Add("label", proc.Label(id))
	cs, err := s.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: f})
	if err != nil {
		s.Error(err)
	}
	for _, c := range cs.Items {
		if !endedHelper(c) {
			out = append(out, fmt.Sprintf("container %s %v", c.ID, c.Names))
		}
	}
	vs, err := s.docker.VolumeList(ctx, client.VolumeListOptions{Filters: f})
	if err != nil {
		s.Error(err)
	}
	for _, v := range vs.Items {
		if !ofInstallation(v.Labels) {
			out = append(out, "volume "+v.Name)
		}
	}
	return out
}

func (dockerState) endJob(s *server, kind, id string, remove bool) bool {
	name := "codehub-" + kind + "-" + id
	var err error
	if remove {
		_, err = s.docker.ContainerRemove(s.Context(), name, client.ContainerRemoveOptions{Force: true})
	} else {
		_, err = s.docker.ContainerKill(s.Context(), name, client.ContainerKillOptions{Signal: "KILL"})
	}
	return err == nil
}

// clusterState is that of a server on a cluster of Kubernetes whose volumes are folders
// of this machine (kubetest.StorageClass).
type clusterState struct{ *kubetest.Cluster }

func (c clusterState) homeFolder(s *server, id string) string {
	s.Helper()
	claim, err := c.Client.CoreV1().PersistentVolumeClaims(clusterNamespace).Get(s.Context(), "ws-"+id+"-home", metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName == "" {
		return ""
	}
	if err != nil {
		s.Fatal(err)
	}
	v, err := c.Client.CoreV1().PersistentVolumes().Get(s.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	home := filepath.Join(v.Spec.HostPath.Path, "home")
	if _, err := os.Stat(home); os.IsNotExist(err) {
		return ""
	}
	return home
}

func (c clusterState) of(s *server, id string) []string {
	s.Helper()
	return c.list(s, "codehub.dev/workspace="+id)
}

func (c clusterState) all(s *server) []string {
	s.Helper()
	installation := s.Installation()
	if installation == "" {
		s.Fatal("the server has not named its installation")
	}
	return c.list(s, "codehub.dev/workspace,codehub.dev/installation="+installation)
}

// list lists the Pods and claims with these labels.
func (c clusterState) list(s *server, labels string) []string {
	s.Helper()
	var out []string
	pods, err := c.Client.CoreV1().Pods(clusterNamespace).List(s.Context(), metav1.ListOptions{LabelSelector: labels})
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range pods.Items {
		out = append(out, fmt.Sprintf("Pod %s, %s", p.Name, p.Status.Phase))
	}
	claims, err := c.Client.CoreV1().PersistentVolumeClaims(clusterNamespace).List(s.Context(), metav1.ListOptions{LabelSelector: labels})
	if err != nil {
		s.Fatal(err)
	}
	for _, claim := range claims.Items {
		out = append(out, "claim "+claim.Name)
	}
	return out
}

// A Pod is not removed by force: nothing would confirm that its process has ended, and the next
// job would start beside it.
func (c clusterState) endJob(s *server, kind, id string, remove bool) bool {
	s.Helper()
	pods, grace := c.Client.CoreV1().Pods(clusterNamespace), int64(1)
	name := "codehub-" + kind + "-" + id
	var err error
	if remove {
		err = pods.Delete(s.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	} else {
		var p *corev1.Pod
		if p, err = pods.Get(s.Context(), name, metav1.GetOptions{}); err == nil {
			err = c.TryKill(p, syscall.SIGKILL)
		}
	}
	if err != nil && !apierrors.IsNotFound(err) && !errors.Is(err, kubetest.ErrNoProcess) {
		s.Errorf("end the job %s: %v", name, err)
	}
	return err == nil
}
