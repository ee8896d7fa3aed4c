package runtimetest

import (
	"context"
	"errors"
	"fmt"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// fakeImage is one image, whatever names it.
type fakeImage struct {
	home       []File
	id, digest string // digest is empty unless it comes from a registry
}

// remoteImage is what a registry has under a name.
type remoteImage struct {
	*fakeImage
	size   int64
	refuse string        // the error of a pull
	hang   chan struct{} // a pull blocks until it is closed
}

// newImage returns a new image. The caller holds w.mu.
func (w *world) newImage(home []File, remote bool) *fakeImage {
	img := &fakeImage{home: home, id: "sha256:" + w.nextID()}
	if remote {
		img.digest = "sha256:" + w.nextID()
	}
	return img
}

// AddImage adds an available image. home must list parents before children,
// starting with the home itself ("."). An image that had the name keeps its ID alone.
func (f *Fake) AddImage(ref string, home []File) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	img := f.w.newImage(home, false)
	f.w.tags[ref], f.w.images[img.id] = img, img
	delete(f.w.registry, ref)
}

// AddRemoteImage adds an image that a pull of so many bytes provides. A name on this
// machine keeps its image until the pull.
func (f *Fake) AddRemoteImage(ref string, home []File, size int64) {
	f.setRemote(ref, home, &remoteImage{size: size})
}

// AddRefusedImage adds an image whose pull fails with this message.
func (f *Fake) AddRefusedImage(ref, words string) {
	f.setRemote(ref, nil, &remoteImage{refuse: words})
}

// AddHangingImage adds an image whose pull blocks until release is called.
func (f *Fake) AddHangingImage(ref string, home []File) (release func()) {
	hang := make(chan struct{})
	f.setRemote(ref, home, &remoteImage{hang: hang})
	return func() { close(hang) }
}

func (f *Fake) setRemote(ref string, home []File, r *remoteImage) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	r.fakeImage = f.w.newImage(home, true)
	f.w.registry[ref] = r
	f.w.registry[imageref.WithDigest(ref, r.digest)] = r
}

// RemoveImage removes the name of an image from this machine and from its registry.
func (f *Fake) RemoveImage(ref string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.tags, ref)
	delete(f.w.registry, ref)
}

// TakeImage removes the image with that ID from this machine, as a prune does.
func (f *Fake) TakeImage(id string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.images, id)
	for ref, img := range f.w.tags {
		if img.id == id {
			delete(f.w.tags, ref)
		}
	}
}

// chosen is the image that a container or a home is made from.
type chosen struct {
	*fakeImage
	note string
}

// chooseImage follows runtime.ImageChoice. op is the step at which a crash can occur.
func (f *Fake) chooseImage(ctx context.Context, op string, id workspace.ID, ref string, choice runtime.ImageChoice, progress func(runtime.Progress)) (chosen, error) {
	note := ""
	if p := choice.Pinned; p != (runtime.Image{}) {
		f.w.mu.Lock()
		img := f.w.images[p.ID]
		f.w.mu.Unlock()
		if img != nil {
			return chosen{img, ""}, nil
		}
		if p.Digest != "" {
			img, err := f.pull(ctx, op, id, imageref.WithDigest(ref, p.Digest), progress)
			var refused *runtime.PullError
			if err == nil || !errors.As(err, &refused) {
				return chosen{img, ""}, err
			}
		}
		note = workspace.ImageReplaced
	}
	f.w.mu.Lock()
	here := f.w.tags[ref]
	f.w.mu.Unlock()
	pull := choice.Pull && choice.Pinned == (runtime.Image{}) && here != nil && here.digest != ""
	if here != nil && !pull {
		return chosen{here, note}, nil
	}
	img, err := f.pull(ctx, op, id, ref, progress)
	var refused *runtime.PullError
	if here != nil && errors.As(err, &refused) {
		return chosen{here, workspace.ImageNotPulled}, nil
	}
	return chosen{img, note}, err
}

func (f *Fake) pull(ctx context.Context, op string, id workspace.ID, ref string, progress func(runtime.Progress)) (*fakeImage, error) {
	report(progress, runtime.StepPulling)
	if err := f.step(ctx, op, id); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	r := f.w.registry[ref]
	f.w.mu.Unlock()
	if r == nil {
		r = &remoteImage{refuse: "repository does not exist"}
	}
	if r.hang != nil {
		select {
		case <-r.hang:
		case <-ctx.Done():
			return nil, fmt.Errorf("pull %s: %w", ref, context.Cause(ctx))
		}
	}
	if r.refuse != "" {
		return nil, &runtime.PullError{Image: ref, Message: r.refuse}
	}
	if progress != nil {
		for done := int64(1); done <= 4; done++ {
			progress(runtime.Progress{Step: runtime.StepPulling, Done: r.size * done / 4, Total: r.size})
		}
	}
	if err := f.step(ctx, op, id); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.tags[ref], f.w.images[r.id] = r.fakeImage, r.fakeImage
	return r.fakeImage, nil
}

// Newest implements runtime.Runtime.
func (f *Fake) Newest(ctx context.Context, ref string, ask bool) (runtime.Image, error) {
	if err := f.enter(ctx, "Newest", ""); err != nil {
		return runtime.Image{}, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var here runtime.Image
	if img := f.w.tags[ref]; img != nil {
		here = runtime.Image{ID: img.id, Digest: img.digest}
	}
	if !ask {
		return here, nil
	}
	r := f.w.registry[ref]
	switch {
	case r == nil, r.refuse != "":
		return runtime.Image{}, &runtime.PullError{Image: ref, Message: "the registry has no such image"}
	case r.digest == here.Digest:
		return here, nil
	}
	return runtime.Image{Digest: r.digest}, nil
}
