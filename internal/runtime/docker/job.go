package docker

import (
	"context"
	"errors"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

var errSeam = errors.New("not there yet")

func (r *Runtime) CreateEmptyVolume(context.Context, runtime.VolumeSpec) error { return errSeam }
func (r *Runtime) MarkRestored(context.Context, workspace.ID, string, string) error {
	return errSeam
}
func (r *Runtime) Jobs(context.Context) ([]runtime.Job, error) { return nil, nil }
func (r *Runtime) StartJob(context.Context, runtime.JobSpec) (runtime.Job, error) {
	return runtime.Job{}, errSeam
}
func (r *Runtime) FollowJob(context.Context, string, func([]byte)) (int, error) { return 0, errSeam }
func (r *Runtime) RemoveJob(context.Context, string) error                      { return errSeam }
func (r *Runtime) Disks(context.Context) ([]runtime.Disk, error)                { return nil, nil }
