package image

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/imagefile"
)

// What administrators do with images on the machine, without a server.

// Local is an image on this machine.
type Local struct {
	ID     string
	Digest string // by which a registry names it; "" if it is not known
	Size   int64
}

// Local returns the image that a reference names on this machine; the zero Local if there is
// none.
func (i *Images) Local(ctx context.Context, ref string) (Local, error) {
	info, digest, err := i.inspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		return Local{}, nil
	}
	if err != nil {
		return Local{}, engine.WrapError(ctx, "inspect image", err)
	}
	return Local{ID: info.ID, Digest: digest, Size: info.Size}, nil
}

// Fetch pulls an image for an administrator, also one that starts of workspaces do not pull.
func (i *Images) Fetch(ctx context.Context, ref string, progress func(runtime.Progress)) error {
	return i.fetch(ctx, ref, "", progress)
}

// Architecture returns that of Docker, as images name it.
func (i *Images) Architecture(ctx context.Context) (string, error) {
	v, err := i.Plain.ServerVersion(ctx, client.ServerVersionOptions{})
	return v.Arch, engine.WrapError(ctx, "ask Docker for its version", err)
}

// Load loads images of a file into Docker. progress gets the bytes that Docker has read.
func (i *Images) Load(ctx context.Context, f *imagefile.File, images []imagefile.Tagged, progress func(int64)) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := f.WriteTo(&counter{w: w, progress: progress}, images...)
		written <- err
		_ = w.CloseWithError(err) // nil: the end
	}()
	err := i.load(ctx, r)
	_ = r.CloseWithError(io.ErrClosedPipe)
	if wrote := <-written; wrote != nil && !errors.Is(wrote, io.ErrClosedPipe) {
		return wrote
	}
	if err != nil {
		return engine.WrapError(ctx, "load images", err)
	}
	for _, image := range images {
		if _, err := i.Plain.ImageInspect(ctx, image.Name); err != nil {
			return engine.WrapError(ctx, "inspect the loaded image", err)
		}
	}
	return nil
}

func (i *Images) load(ctx context.Context, content io.Reader) error {
	res, err := i.Plain.ImageLoad(ctx, content, client.ImageLoadWithQuiet(true))
	if err != nil {
		return err
	}
	defer res.Close()
	for dec := json.NewDecoder(res); ; {
		var m jsonstream.Message
		switch err := dec.Decode(&m); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case m.Error != nil:
			return errors.New(m.Error.Message)
		}
	}
}

// counter reports how much was written.
type counter struct {
	w        io.Writer
	n        int64
	progress func(int64)
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	if c.progress != nil {
		c.progress(c.n)
	}
	return n, err
}
