package docker

import (
	"context"
	"errors"
	"strings"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A workspace and a task on its home, which is a storage job or a fingerprint's
// container, must not run at the same time. Both are created first, then look for
// each other, and are started last, so that one of them sees the other. Docker may
// still be starting a task whose server has died or has given up, and lists it as
// created until then.

// taskContainer is the container of a task.
type taskContainer struct {
	id, name, role string
	workspace      workspace.ID
	state          runtime.ContainerState
}

// taskNames are the names of storage jobs and of fingerprints' containers.
const taskNames = "^/?codehub-(" + string(runtime.JobArchive) + "|" + string(runtime.JobRestore) + "|look)-"

// clearTasks removes the tasks of a workspace, except ended storage jobs. It is
// called when the workspace's container exists and is not started. It returns a
// BusyError if a storage job runs, which Jobs then lists.
func (r *Runtime) clearTasks(ctx context.Context, id workspace.ID) error {
	all, err := r.tasks.do(ctx, struct{}{}, r.listTasks)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.workspace != id || t.state == runtime.ContainerExited {
			continue
		}
		if t.role == roleJob && t.state == runtime.ContainerRunning {
			// Docker may list a state from before a crash.
			c, err := r.inspectJob(ctx, roleJob, t.id)
			if errors.Is(err, runtime.ErrNotFound) || err == nil && stateOf(c.State.Status) == runtime.ContainerExited {
				continue
			}
			if err != nil {
				return err
			}
			return inUse("the home of workspace "+string(id), []user{{name: t.name, role: roleJob, running: true}})
		}
		// Docker finishes a start of the container first, and then kills it.
		if err := r.discard(ctx, t.id); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) listTasks(ctx context.Context) ([]taskContainer, error) {
	list, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter("").Add("name", taskNames)})
	if err != nil {
		return nil, wrapError(ctx, "list containers that work on homes", err)
	}
	var out []taskContainer
	for _, c := range list.Items {
		t := taskContainer{
			id: c.ID, role: c.Labels[labelRole], workspace: workspace.ID(c.Labels[labelWorkspace]), state: stateOf(c.State),
		}
		if len(c.Names) > 0 {
			t.name = strings.TrimPrefix(c.Names[0], "/")
		}
		out = append(out, t)
	}
	return out, nil
}
