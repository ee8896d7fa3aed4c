package reconcile

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// observation is the state of all containers, volumes and jobs, from one list call
// each.
type observation struct {
	containers map[workspace.ID]*runtime.Container
	volumes    map[workspace.ID]*runtime.Volume
	jobs       map[workspace.ID][]runtime.Job
}

func (t *term) observe(ctx context.Context) (observation, error) {
	var containers []runtime.Container
	var volumes []runtime.Volume
	var jobs []runtime.Job
	// A runtime that accepts a call but never responds counts as unavailable.
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ObserveTimeout)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		containers, err = t.cfg.Runtime.Containers(gctx)
		return err
	})
	g.Go(func() (err error) {
		volumes, err = t.cfg.Runtime.Volumes(gctx)
		return err
	})
	g.Go(func() (err error) {
		jobs, err = t.cfg.Runtime.Jobs(gctx)
		return err
	})
	err := g.Wait()
	if err != nil {
		return observation{}, fmt.Errorf("observe: %w", err)
	}
	seen := observation{
		containers: make(map[workspace.ID]*runtime.Container, len(containers)),
		volumes:    make(map[workspace.ID]*runtime.Volume, len(volumes)),
		jobs:       make(map[workspace.ID][]runtime.Job, len(jobs)),
	}
	for _, j := range jobs {
		seen.jobs[j.Workspace] = append(seen.jobs[j.Workspace], j)
	}
	for i := range containers {
		seen.containers[containers[i].Workspace] = &containers[i]
	}
	for i := range volumes {
		seen.volumes[volumes[i].Workspace] = &volumes[i]
	}
	return seen, nil
}

// of returns the observation of one workspace as the input of lifecycle.Judge.
func (o observation) of(row workspace.Workspace, answered func(containerID string) bool) lifecycle.Observation {
	j := lifecycle.Observation{ContainerKnown: true, VolumeKnown: true}
	if k := o.containers[row.ID]; k != nil {
		c := lifecycle.Container{ID: k.ID, Detail: k.Detail, LostNode: k.LostNode, Image: k.Image, EnvDigest: k.EnvDigest, Size: k.Size, Pin: workspace.ImagePin{
			Ref: k.Image, ID: k.ImageID, Digest: k.ImageDigest, Generation: k.ImageGeneration, Note: k.ImageNote,
		}}
		switch k.State {
		case runtime.ContainerCreated:
			c.State = lifecycle.Created
		case runtime.ContainerRunning:
			c.State = lifecycle.Running
			c.Answers = answered(k.ID)
		default:
			c.State = lifecycle.Exited
		}
		j.Container = &c
	}
	if v := o.volumes[row.ID]; v != nil {
		j.Volume = &lifecycle.Volume{Claim: v.Claim, Seeded: v.Seeded, Marker: v.Marker, Removing: v.Removing, Lost: v.Lost, Limit: v.Limit}
	}
	return j
}

func (t *term) markAnswered(containerID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered[containerID] = time.Now()
}

func (t *term) isAnswered(containerID string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.answered[containerID]
	return ok
}
