// Package imagebuild makes the images of workspaces while the server serves
// (CODEHUB_BUILD_IMAGES), one after the other, and knows how far each of them is.
//
// `PROGRAM list` prints a line NAME<TAB>IMAGE for each image, in the order in which they are
// made. `PROGRAM make NAME` makes one of them and exits with 0 once it is there and current.
// It prints a line `step K/N TEXT` when a step begins; everything else is its log.
package imagebuild

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"codehub/internal/workspace/imageref"
)

// Config configures a Builder.
type Config struct {
	Program string
	Env     []string // of the program, in addition to this process's
	Log     *slog.Logger
	// Grace is the time between SIGTERM and SIGKILL when the server shuts down; 0 is 5 s.
	Grace time.Duration
	// Now returns the time; nil: time.Now.
	Now func() time.Time
}

// Builder makes images. It is safe for concurrent use; a nil Builder makes none.
type Builder struct {
	cfg Config

	mu      sync.Mutex
	images  []Image
	changed chan struct{} // closed at the next change
}

// listWithin bounds the time in which the program lists its images.
const listWithin = 10 * time.Second

// New asks the program for its images. Run makes them.
func New(ctx context.Context, cfg Config) (*Builder, error) {
	if cfg.Grace <= 0 {
		cfg.Grace = 5 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	images, err := list(ctx, cfg.Program)
	if err != nil {
		return nil, err
	}
	return &Builder{cfg: cfg, images: images, changed: make(chan struct{})}, nil
}

// Images returns all images, in the order in which they are made.
func (b *Builder) Images() []Image {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out := slices.Clone(b.images)
	for i := range out {
		out[i].Log = slices.Clone(out[i].Log)
	}
	return out
}

// Find returns the image with a reference.
func (b *Builder) Find(ref string) (Image, bool) {
	for _, i := range b.Images() {
		if imageref.Same(i.Ref, ref) {
			return i, true
		}
	}
	return Image{}, false
}

// Current returns the image that is being made.
func (b *Builder) Current() (Image, bool) {
	for _, i := range b.Images() {
		if i.State == Making {
			return i, true
		}
	}
	return Image{}, false
}

// Pending reports whether an image is going to be made, or is being made.
func (b *Builder) Pending(ref string) bool {
	i, found := b.Find(ref)
	return found && (i.State == Waiting || i.State == Making)
}

// Interim returns the image that is used in place of the default image with this reference
// until that is ready; "" for none.
func (b *Builder) Interim(ref string) string {
	i, found := b.Find(ref)
	if !found || i.Name != Full || i.State == Ready {
		return ""
	}
	for _, other := range b.Images() {
		if other.Name == Slim {
			return other.Ref
		}
	}
	return ""
}

// Changed returns a channel that is closed at the next change of a state or a step; nil
// without images.
func (b *Builder) Changed() <-chan struct{} {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Retry makes an image that failed again, after the one that is being made. It returns the
// image; found is false if there is none with this name.
func (b *Builder) Retry(name string) (image Image, found bool) {
	if b == nil {
		return Image{}, false
	}
	b.change(func() (changed bool) {
		n := slices.IndexFunc(b.images, func(i Image) bool { return i.Name == name })
		if found = n >= 0; found {
			changed = b.images[n].retry()
			image = b.images[n]
			image.Log = slices.Clone(image.Log)
		}
		return changed
	})
	return image, found
}

// change calls f with b.mu held and announces a change if f reports one.
func (b *Builder) change(f func() bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f() {
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

// Run makes the images, and those that are tried again, until ctx ends. Nothing of the
// program is left when it returns.
func (b *Builder) Run(ctx context.Context) {
	if b == nil {
		return
	}
	for ctx.Err() == nil {
		changed := b.Changed()
		if next := slices.IndexFunc(b.Images(), func(i Image) bool { return i.State == Waiting }); next >= 0 {
			b.make(ctx, next)
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

func (b *Builder) make(ctx context.Context, n int) {
	image := &b.images[n] // its fields are guarded by b.mu
	name, ref := image.Name, image.Ref
	log := b.cfg.Log.With("image", ref)
	b.change(func() bool { image.begin(b.cfg.Now()); return true })
	began, first := time.Now(), true
	err := run(ctx, b.cfg.Grace, b.cfg.Program, []string{"make", name}, b.cfg.Env, func(line string) {
		step := false
		b.change(func() bool {
			step = image.step(line)
			image.log(line)
			return step
		})
		if step && first {
			first = false
			log.Info("building image")
		}
		log.Debug("image build", "line", line)
	})
	if ctx.Err() != nil {
		return // the next server makes it
	}
	b.change(func() bool { image.end(err, b.cfg.Now()); return true })
	switch {
	case err != nil:
		log.Error("image build failed", "err", err, "log", b.Images()[n].Log)
	case first:
		log.Debug("image is current")
	default:
		log.Info("image built", "took", time.Since(began).Round(time.Second))
	}
}
