package runtimetest

import (
	"context"
	"errors"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

var errSeam = errors.New("not there yet")

func (f *Fake) CreateEmptyVolume(context.Context, runtime.VolumeSpec) error { return errSeam }
func (f *Fake) MarkRestored(context.Context, workspace.ID, string, string) error {
	return errSeam
}
func (f *Fake) Jobs(context.Context) ([]runtime.Job, error) { return nil, nil }
func (f *Fake) StartJob(context.Context, runtime.JobSpec) (runtime.Job, error) {
	return runtime.Job{}, errSeam
}
func (f *Fake) FollowJob(context.Context, string, func([]byte)) (int, error) { return 0, errSeam }
func (f *Fake) RemoveJob(context.Context, string) error                      { return errSeam }
func (f *Fake) Disks(context.Context) ([]runtime.Disk, error)                { return nil, nil }
