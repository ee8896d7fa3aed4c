package helper

import (
	"time"

	"github.com/moby/moby/api/types/container"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// JobOf returns the storage job that a container with these labels is.
func JobOf(id string, labels map[string]string, state container.ContainerState, created time.Time) runtime.Job {
	return runtime.Job{
		ID:          id,
		Workspace:   workspace.ID(labels[engine.LabelWorkspace]),
		Claim:       labels[engine.LabelClaim],
		Kind:        runtime.JobKind(labels[engine.LabelKind]),
		VolumeClaim: labels[engine.LabelVolume],
		Key:         labels[engine.LabelKey],
		BucketDir:   labels[engine.LabelBucket],
		Running:     engine.StateOf(state) == runtime.ContainerRunning,
		Created:     created,
	}
}

// Job returns the storage job that an inspected container is.
func Job(c container.InspectResponse) runtime.Job {
	created, _ := time.Parse(time.RFC3339Nano, c.Created)
	return JobOf(c.ID, c.Config.Labels, c.State.Status, created)
}
