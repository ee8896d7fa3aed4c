package docker

import (
	"fmt"
	"slices"
	"testing"

	"codehub/internal/harness"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A task of a former leader that is stopped before any of its calls to Docker does not run
// beside the workspace that its successor starts.
func TestTaskDoesNotRunBesideWorkspace(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(l *lateHome) error{
		"archive": func(l *lateHome) error {
			_, err := l.old.StartJob(l.Context(), runtime.JobSpec{
				Workspace: l.id, Claim: "op", Kind: runtime.JobArchive, Storage: l.storage, VolumeClaim: "home-1", Key: "key",
				Input: []byte("exit 0\n"), ObjectDir: l.objects,
			}, nil)
			return err
		},
		"fingerprint": func(l *lateHome) error {
			_, err := l.old.Fingerprint(l.Context(), l.id, "home-1", nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, old, next := twoServers(t)
			if err := next.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := old.Jobs(t.Context()); err != nil { // the first request negotiates the API version
				t.Fatal(err)
			}
			for n := 1; startBesideTask(t, call, e, old, next, n); n++ {
				if n > 60 {
					t.Fatal("the call does not end")
				}
			}
		})
	}
}

// startBesideTask stops the call before its nth request and starts the workspace. It returns
// false if the call has fewer requests.
func startBesideTask(t *testing.T, call func(l *lateHome) error, e *faultProxy, old, next *Runtime, n int) bool {
	t.Helper()
	spec := newHome()
	l := &lateHome{T: t, old: old, next: next, storage: workspace.StorageDockerVolume, id: spec.Workspace, objects: t.TempDir()}
	spec.VolumeClaim = "home-1"
	l.seed("home-1")
	l.settle()
	h := e.hold(n)
	done := make(chan error, 1)
	go func() { done <- call(l) }()
	select {
	case <-done:
		e.fault.Store(nil)
		return false
	case <-h.reached:
	}
	at := fmt.Sprintf("stopped before request %d", n)
	c, err := next.StartContainer(t.Context(), spec, nil)
	close(h.release)
	late := <-done
	e.fault.Store(nil)
	t.Logf("%s: StartContainer: %v; the task: %v", at, err, late)
	l.ok("StartContainer", err)
	harness.Eventually(t, at+": no container of the task", func() bool { // a call may be removing it
		tasks, err := next.listTasks(t.Context())
		l.ok("listTasks", err)
		return !slices.ContainsFunc(tasks, func(task taskContainer) bool {
			if task.workspace == l.id && task.state == runtime.ContainerRunning {
				t.Fatalf("%s: container %s of the task runs", at, task.name)
			}
			return task.workspace == l.id
		})
	})
	l.ok("RemoveContainer", next.RemoveContainer(t.Context(), c.ID, 0))
	return true
}
