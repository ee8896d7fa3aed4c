package runtimetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// fakeAside is a set-aside volume.
type fakeAside struct {
	runtime.Aside
	installation string
	files        map[string]File
}

// SetAside implements runtime.Runtime.
func (f *Fake) SetAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	if err := f.enter(ctx, "SetAside", id); err != nil {
		return "", err
	}
	f.w.mu.Lock()
	v := f.w.volumes[id]
	inTheWay := v != nil && !(claim != "" && f.owns(v, claim))
	f.w.mu.Unlock()
	if !inTheWay {
		return "", nil
	}
	report(progress, runtime.StepCopying)
	if err := f.step(ctx, "SetAside/copied", id); err != nil {
		return "", err
	}
	name, err := f.moveAside(id, claim, found)
	if err != nil {
		return "", err
	}
	return name, f.step(ctx, "SetAside/done", id)
}

func (f *Fake) moveAside(id workspace.ID, claim, found string) (string, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	switch {
	case v == nil || claim != "" && f.owns(v, claim):
		return "", nil
	case v.installation != "" && v.installation != f.installation:
		return "", fmt.Errorf("volume of %s belongs to another installation: %w", id, runtime.ErrVolumeMismatch)
	case v.Claim != found:
		return "", fmt.Errorf("volume of %s was replaced: %w", id, runtime.ErrVolumeMismatch)
	case f.w.containers[id] != nil:
		return "", fmt.Errorf("volume of %s is in use by container %s: %w", id, id.ContainerName(), runtime.ErrConflict)
	}
	for _, j := range f.w.jobsOf(id) {
		if j.state == jobRunning {
			return "", fmt.Errorf("volume of %s is in use by job %s: %w", id, j.ID, runtime.ErrConflict)
		}
	}
	f.w.dropJobs(id)
	f.w.serial++
	name := fmt.Sprintf("ws-%s-aside-%d", id, f.w.serial)
	f.w.asides = append(f.w.asides, fakeAside{
		Aside: runtime.Aside{
			Name: name, Workspace: id, Storage: v.Storage, Since: time.Now(), Complete: true, Entries: int64(len(v.files)),
		},
		installation: f.installation, files: v.files,
	})
	delete(f.w.volumes, id)
	f.w.change()
	return name, nil
}

// Asides implements runtime.Runtime.
func (f *Fake) Asides(ctx context.Context) ([]runtime.Aside, error) {
	if err := f.enter(ctx, "Asides", ""); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var out []runtime.Aside
	for _, a := range f.w.asides {
		if a.installation == f.installation {
			out = append(out, a.Aside)
		}
	}
	return out, nil
}

// AsideFiles returns the content of a set-aside volume, sorted by path.
func (f *Fake) AsideFiles(name string) []File {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var out []File
	for _, a := range f.w.asides {
		if a.Name == name {
			for _, file := range a.files {
				out = append(out, file)
			}
		}
	}
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// TakeAside removes a set-aside volume by hand.
func (f *Fake) TakeAside(name string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.asides = slices.DeleteFunc(f.w.asides, func(a fakeAside) bool { return a.Name == name })
	f.w.change()
}
