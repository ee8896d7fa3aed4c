package job

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// A workspace and a task on its home must not run at the same time. Both are created
// first, then look for each other, and are started last, so that one of them sees the
// other. Docker may still be starting a task whose server has died or has given up,
// and lists it as created until then.

// taskContainer is the container of a task that needs a home alone: a storage job other than
// a backup, or a helper that computes the home's fingerprint or changes the owner of its files.
type taskContainer struct {
	id, name, role string
	workspace      workspace.ID
	state          runtime.ContainerState
}

// taskNames are the names of tasks.
const taskNames = "^/?codehub-(" + string(runtime.JobArchive) + "|" + string(runtime.JobRestore) + "|look)-"

// ClearTasks removes the tasks of a workspace that were not started, and helpers that
// run. It returns a BusyError if a storage job runs, which Jobs then lists. own is the
// workspace's container, which exists and was not started.
func (j *Jobs) ClearTasks(ctx context.Context, id workspace.ID, own string) error {
	all, err := j.tasks.Do(ctx, struct{}{}, j.listTasks)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.workspace != id || t.state == runtime.ContainerExited {
			continue
		}
		if t.role == engine.RoleJob && t.state == runtime.ContainerRunning {
			// Docker may list a state that is over.
			c, err := j.helper.Inspect(ctx, engine.RoleJob, t.id)
			if errors.Is(err, runtime.ErrNotFound) || err == nil && engine.StateOf(c.State.Status) == runtime.ContainerExited {
				continue
			}
			if err != nil {
				return err
			}
			return engine.InUse("the home of workspace "+string(id), []engine.User{{Name: t.name, Role: engine.RoleJob, Running: true}})
		}
		// While the workspace's container exists, no listed task is allowed to start.
		// A delayed call, whose container is gone, must not remove the task of another.
		_, err := j.API.ContainerInspect(ctx, own, client.ContainerInspectOptions{})
		if errdefs.IsNotFound(err) {
			return engine.ErrConcurrent("the container of workspace %s was removed by another call", id)
		}
		if err != nil {
			return engine.WrapError(ctx, "inspect container", err)
		}
		// Docker finishes a start of the task first, and then kills it.
		if err := j.Discard(ctx, t.id); err != nil {
			return fmt.Errorf("container %s, which uses the home: %w", t.name, err)
		}
	}
	return nil
}

func (j *Jobs) listTasks(ctx context.Context) ([]taskContainer, error) {
	list, err := j.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: j.Filter("").Add("name", taskNames)})
	if err != nil {
		return nil, engine.WrapError(ctx, "list containers that work on homes", err)
	}
	var out []taskContainer
	for _, c := range list.Items {
		t := taskContainer{
			id: c.ID, role: c.Labels[engine.LabelRole], workspace: workspace.ID(c.Labels[engine.LabelWorkspace]), state: engine.StateOf(c.State),
		}
		if len(c.Names) > 0 {
			t.name = strings.TrimPrefix(c.Names[0], "/")
		}
		out = append(out, t)
	}
	return out, nil
}
