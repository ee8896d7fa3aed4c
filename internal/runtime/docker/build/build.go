// Package build builds images for workspaces with Docker's classic builder. BuildKit takes no
// limits of memory and processor by the API, and loads frontends from registries.
package build

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"time"

	buildtypes "github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/runtime/docker/network"
	"codehub/internal/workspace"
	"codehub/internal/workspace/devcontainer/recipe"
)

// Builder builds images on a Docker Engine.
type Builder struct {
	*engine.Engine
	Network *network.Network // of the containers that run a Dockerfile's commands
	images  *image.Images
	pids    int64 // 0: no limit
}

// New returns a Builder. It does not call Docker.
func New(e *engine.Engine, images *image.Images, net *network.Network, pids int64) *Builder {
	return &Builder{Engine: e, Network: net, images: images, pids: pids}
}

// Spec describes a build.
type Spec struct {
	Name      string // of the image
	Workspace workspace.ID
	Owner     string // ID of the workspace's owner: builds share layers with those of the same one
	// Dockerfile is its text, for recipe.Read. The images that it names are pulled if they are missing.
	Dockerfile string
	// Context are tars of the files that COPY and ADD find, and Files further ones by their names. A
	// .dockerignore excludes nothing.
	Context []io.Reader
	Files   map[string][]byte
	Target  string // stage; empty: the last one
	Args    map[string]string
	Size    workspace.Size // of the containers that run the commands, without the limit of its disk
}

// Failed is the error of a build that the Dockerfile or its context is the reason of, and not
// Docker or this server.
type Failed struct {
	Message string // one sentence
}

func (e *Failed) Error() string { return e.Message }

// Build builds an image, and ends with ctx. It calls line with each line of the log. The error
// is a *Failed, one of a pull, or as of engine.WrapError.
func (b *Builder) Build(ctx context.Context, spec Spec, line func(string)) error {
	labels := b.Labels(engine.RoleBuilt, "", "")
	labels[engine.LabelOwner] = spec.Owner
	labels[engine.LabelWorkspace], labels[engine.LabelClaim] = "", "" // not those of the base
	file, err := recipe.Read(spec.Dockerfile, spec.Args)
	if err != nil {
		return &Failed{sentence(err.Error())}
	}
	dockerfile := file.Text(own(labels))
	for _, ref := range file.Images {
		if err := b.base(ctx, ref, spec.Owner, line); err != nil {
			return err
		}
	}
	if _, err := b.Network.Checked(ctx, 0); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if b.pids > 0 {
		go b.limitProcesses(ctx)
	}

	labels[engine.LabelWorkspace] = string(spec.Workspace)
	opts := client.ImageBuildOptions{
		Version: buildtypes.BuilderV1, Tags: []string{spec.Name}, Labels: labels, Dockerfile: dockerfileName, Target: spec.Target,
		BuildArgs: map[string]*string{}, NetworkMode: b.Network.Name(), Remove: true, ForceRemove: true,
		Memory: spec.Size.Memory, MemorySwap: spec.Size.Memory, // equal: no swap
	}
	for name, value := range spec.Args {
		opts.BuildArgs[name] = &value
	}
	if spec.Size.NanoCPUs > 0 {
		opts.CPUPeriod = cpuPeriod
		opts.CPUQuota = max(spec.Size.NanoCPUs*cpuPeriod/1e9, 1000) // the kernel's least
	}

	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeContext(w, spec, dockerfile)
		written <- err
		_ = w.CloseWithError(err) // nil: the end
	}()
	err = b.run(ctx, r, opts, &lines{line: line})
	_ = r.CloseWithError(io.ErrClosedPipe)
	if wrote := <-written; wrote != nil && !errors.Is(wrote, io.ErrClosedPipe) && ctx.Err() == nil {
		return wrote
	}
	return err
}

// cpuPeriod is the kernel's default, in microseconds.
const cpuPeriod = 100_000

// base pulls an image that the Dockerfile names, if it is missing, by the rules for pulls of
// workspaces' images. ONBUILD instructions of an image could download what only Docker's host
// reaches.
func (b *Builder) base(ctx context.Context, ref, user string, line func(string)) error {
	pulling := ""
	chosen, err := b.images.Choose(ctx, ref, user, runtime.ImageChoice{}, func(p runtime.Progress) {
		if p.Step != pulling {
			pulling = p.Step
			line(ref + ": " + p.Step)
		}
	})
	if err != nil {
		return err
	}
	info, err := b.API.ImageInspect(ctx, chosen.ID)
	if err != nil {
		return engine.WrapError(ctx, "inspect image", err)
	}
	if info.Config != nil && len(info.Config.OnBuild) > 0 {
		return errOnBuild
	}
	return nil
}

var errOnBuild = &Failed{"An image that the Dockerfile names has ONBUILD instructions, which codehub does not run."}

// onBuild matches what Docker says before it runs such instructions, of an image whose name has
// been moved meanwhile.
var onBuild = regexp.MustCompile(`^# Executing \d+ build trigger`)

// limitProcesses limits the processes of each container of a build until ctx ends: the classic
// builder has no such option.
func (b *Builder) limitProcesses(ctx context.Context) {
	stream := b.API.Events(ctx, client.EventsListOptions{
		Since:   strconv.FormatInt(time.Now().Unix(), 10),
		Filters: client.Filters{}.Add("type", string(events.NetworkEventType)).Add("event", string(events.ActionConnect)).Add("network", b.Network.Name()),
	})
	for {
		select {
		case m := <-stream.Messages:
			id := m.Actor.Attributes["container"]
			_, err := b.API.ContainerUpdate(ctx, id, client.ContainerUpdateOptions{Resources: &container.Resources{PidsLimit: &b.pids}})
			if err != nil && ctx.Err() == nil { // usually, it has ended
				b.Log.Debug("processes of a build not limited", "container", id, "err", err)
			}
		case err := <-stream.Err:
			if ctx.Err() == nil {
				b.Log.Warn("processes of builds not limited", "err", err)
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

func (b *Builder) run(ctx context.Context, content io.Reader, opts client.ImageBuildOptions, log *lines) error {
	// Without the breaker: a context that breaks off says nothing about Docker.
	res, err := b.Plain.ImageBuild(ctx, content, opts)
	if err != nil {
		return b.failed(ctx, err)
	}
	defer res.Body.Close()
	defer log.end()
	built := false
	for dec := json.NewDecoder(res.Body); ; {
		var m jsonstream.Message
		err := dec.Decode(&m)
		switch {
		case ctx.Err() != nil:
			return engine.WrapError(ctx, "build image", ctx.Err())
		case err == io.EOF && built:
			return nil
		case err == io.EOF: // Docker was stopped
			return engine.WrapError(ctx, "build image", io.ErrUnexpectedEOF)
		case err != nil:
			return engine.WrapError(ctx, "build image", err)
		case m.Error != nil:
			return b.failed(ctx, m.Error)
		case onBuild.MatchString(m.Stream):
			return errOnBuild
		}
		log.write(m.Stream)
		built = built || m.Aux != nil
	}
}
