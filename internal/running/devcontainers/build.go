package devcontainers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"codehub/internal/base/trust"
	"codehub/internal/postgres"
	"codehub/internal/runtime/docker/build"
	"codehub/internal/runtime/registry"
	"codehub/internal/workspace"
	"codehub/internal/workspace/devcontainer"
	"codehub/internal/workspace/devcontainer/feature"
	"codehub/internal/workspace/devcontainer/recipe"
	"codehub/internal/workspace/imageref"
)

const (
	// sweepEvery is how often images are removed that no workspace uses.
	sweepEvery = time.Hour
	// unusedFor is for how long such an image stays: a layer of it makes the next build short.
	unusedFor = 24 * time.Hour

	metadata = "devcontainer-feature.json"
)

// Contexts streams folders of the repositories of running workspaces (*attach.Attacher).
type Contexts interface {
	BuildContext(ctx context.Context, id workspace.ID, folder, path, dockerfile string) (io.ReadCloser, error)
}

// Images is what images are built with.
type Images struct {
	Contexts Contexts
	Docker   *build.Builder
	Registry registry.Client
	// LoginsFile is that of registry.ReadLogins; empty: none.
	LoginsFile string
	Allowed    imageref.Allowed
	Sizes      workspace.Sizes
	// Proxy are the variables of this server's proxy, for the programs of a build.
	Proxy map[string]string
	// Authorities are those of a company, in PEM; empty: none.
	Authorities []byte
}

// unusable is the error of a build for a reason of the repository's: a sentence for its owner.
func unusable(format string, args ...any) error {
	return &workspace.Error{Code: workspace.CodeInvalid, Message: sentenceOf(fmt.Sprintf(format, args...))}
}

// build builds the image of a job in a folder that it makes and removes, and returns what the
// workspace uses with it.
func (i Images) build(ctx context.Context, dir string, j job, p *progress) (workspace.Devcontainer, error) {
	uses, e := *j.file.uses, j.file.e
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return uses, err
	}
	defer os.RemoveAll(dir)
	in := recipe.Inputs{Images: map[string]string{}, Base: i.base(j), Args: maps.Clone(i.Proxy)}
	if len(i.Authorities) > 0 {
		in.Authorities = trust.Files(nil, i.Authorities)["ca-certificates.crt"]
	}
	files := &spool{dir: dir}
	if e.Build != nil {
		if err := i.dockerfile(ctx, j, files, &in, p); err != nil {
			return uses, err
		}
	} else if len(e.Features) > 0 {
		in.Images[in.Base] = ""
		if err := i.allowed(in.Base, j.w.OwnerID); err != nil {
			return uses, err
		}
	}
	for ref := range in.Images {
		id, err := i.Docker.Has(ctx, ref)
		if err != nil {
			return uses, err
		}
		in.Images[ref] = id
	}
	order, err := i.features(ctx, j, files, &in, p)
	if err != nil {
		return uses, err
	}
	for _, f := range order {
		merge(&uses, f, p)
	}
	if err := uses.Check(); err != nil { // before it takes half an hour
		return uses, err
	}
	uses.Given.Image = imageref.BuiltPrefix + j.w.OwnerID + ":" + in.Digest()
	p.change(func(r *postgres.BuildReport) { r.Image = uses.Given.Image })
	if err := p.save(ctx); err != nil { // sweep removes no image that is recorded
		return uses, err
	}
	if id, err := i.Docker.Has(ctx, uses.Given.Image); err != nil || id != "" {
		p.step("%s is already built", uses.Given.Image)
		return uses, err
	}
	spec := build.Spec{Workspace: j.w.ID, Owner: j.w.OwnerID, Size: i.Sizes.Of(workspace.SizeNamed(cmp.Or(uses.Given.Size, j.w.Size, workspace.DefaultSize)))}
	if len(in.Authorities) > 0 {
		spec.Files = map[string][]byte{recipe.AuthoritiesFile: in.Authorities}
	}
	if e.Build != nil {
		spec.Name = uses.Given.Image
		if len(order) > 0 {
			spec.Name += "-base"
		}
		p.step("Build the image")
		spec.Dockerfile, spec.Target, spec.Args = in.Dockerfile, in.Target, in.Args
		if err := i.run(ctx, spec, files, []string{contextFile}, p); err != nil {
			return uses, err
		}
		in.Base = spec.Name
	}
	if len(order) > 0 {
		p.step("Install %d Features", len(order))
		spec.Name, spec.Target, spec.Args = uses.Given.Image, "", i.Proxy
		spec.Dockerfile = recipe.Features(in.Base, in.Installs, in.Authorities)
		var folders []string
		for _, i := range in.Installs {
			folders = append(folders, i.Dir)
		}
		if err := i.run(ctx, spec, files, folders, p); err != nil {
			return uses, err
		}
	}
	return uses, nil
}

// base is the image in which Features are installed if the file builds none.
func (i Images) base(j job) string {
	if j.file.uses.Given.Image != "" {
		return j.file.uses.Given.Image
	}
	if p := j.w.Project; p != nil && p.Devcontainer != nil && p.Devcontainer.Given.Image == j.w.ImageRef {
		return p.Devcontainer.Before.Image
	}
	return j.w.ImageRef
}

// run has Docker build an image of a context of tars that were kept.
func (i Images) run(ctx context.Context, spec build.Spec, files *spool, names []string, p *progress) error {
	tars, done, err := files.open(names...)
	if err != nil {
		return err
	}
	defer done()
	spec.Context = tars
	err = i.Docker.Build(ctx, spec, p.line)
	var failed *build.Failed
	if errors.As(err, &failed) { // the words are for the owner of the Dockerfile
		return &workspace.Error{Code: workspace.CodeInvalid, Message: failed.Message}
	}
	return err
}

// dockerfile reads the build context, and checks the images of its Dockerfile.
func (i Images) dockerfile(ctx context.Context, j job, files *spool, in *recipe.Inputs, p *progress) (err error) {
	b := j.file.e.Build
	p.step("Read %s and its build context", b.Dockerfile)
	if in.Context, err = files.context(ctx, i.Contexts, j, b); err != nil {
		return err
	}
	text, err := files.dockerfile()
	if err != nil {
		return err
	}
	in.Target, in.Base = b.Target, ""
	if in.Args == nil {
		in.Args = map[string]string{}
	}
	maps.Copy(in.Args, b.Args)
	file, err := recipe.Read(text, in.Args)
	if err != nil {
		return unusable("%s: %s", b.Dockerfile, err)
	}
	in.Dockerfile = file.Text(recipe.Trust(in.Authorities))
	for _, ref := range file.Images {
		if err := i.allowed(ref, j.w.OwnerID); err != nil {
			return err
		}
		in.Images[ref] = ""
	}
	return nil
}

// allowed returns an error for an image that a workspace of the owner may not use.
func (i Images) allowed(ref, owner string) error {
	err := i.Allowed.Check(ref, owner)
	if err == nil {
		return nil
	}
	return &workspace.Error{Code: workspace.CodeImageNotAllowed, Message: err.Error()}
}

// features fetches the Features of the file, and those that they depend on, in the order of their
// installation.
func (i Images) features(ctx context.Context, j job, files *spool, in *recipe.Inputs, p *progress) ([]feature.Found, error) {
	if len(j.file.e.Features) == 0 {
		return nil, nil
	}
	logins := map[string]registry.Login{}
	if i.LoginsFile != "" {
		var err error
		if logins, err = registry.ReadLogins(i.LoginsFile); err != nil {
			return nil, err
		}
	}
	order, err := feature.Order(j.file.e.Features, j.file.e.FeatureOrder, func(f devcontainer.Feature) (found feature.Found, err error) {
		p.step("Fetch the Feature %s", f.Reference)
		var content []byte
		if f.Local {
			found.Digest, content, err = readFeature(ctx, i.Contexts, j, f.Reference)
		} else {
			found.Digest, content, err = i.Registry.Feature(ctx, f.Reference, logins[imageref.Registry(f.Reference)])
		}
		if err != nil {
			return found, fmt.Errorf("the Feature %s: %w", f.Reference, err)
		}
		if err := files.keep(found.Digest, content); err != nil {
			return found, err
		}
		text, err := fileIn(bytes.NewReader(content), metadata)
		if err != nil {
			return found, unusable("the Feature %s: %s", f.Reference, err)
		}
		if found.Metadata, err = devcontainer.ParseFeature(text, j.file.name, j.file.place, j.file.e.Folder); err != nil {
			return found, unusable("the Feature %s: %s", f.Reference, err)
		}
		return found, nil
	})
	if err != nil {
		var coded *workspace.Error
		var refused *registry.Refusal
		if errors.As(err, &coded) || errors.As(err, &refused) || ctx.Err() != nil {
			return nil, err
		}
		return nil, unusable("%s", err)
	}
	for n, f := range order {
		env, err := feature.Env(f)
		if err != nil {
			return nil, unusable("%s", err)
		}
		dir := fmt.Sprintf("feature-%d", n)
		in.Installs = append(in.Installs, recipe.Install{Name: f.Name(), Dir: dir, Digest: f.Digest, Env: env, ContainerEnv: f.Metadata.Env})
		if err := files.add(dir, f.Digest); err != nil {
			var coded *workspace.Error
			if errors.As(err, &coded) {
				return nil, err
			}
			return nil, unusable("the Feature %s: %s", f.Reference, err)
		}
	}
	return order, nil
}

// merge adds what a Feature brings to what the workspace uses. The file's own settings, and scripts
// of the same hook, come after those of Features.
func merge(uses *workspace.Devcontainer, f feature.Found, p *progress) {
	m := f.Metadata
	for _, s := range m.Scripts {
		script := scriptOf(s)
		script.Name += "." + m.ID
		// Those of earlier Features have names that begin with the hook and a dot.
		at := slices.IndexFunc(uses.Scripts, func(o workspace.DevcontainerScript) bool {
			hook, _, ofFeature := strings.Cut(o.Name, ".")
			order := devcontainer.Hook(hook).Compare(s.Hook)
			return order > 0 || order == 0 && !ofFeature
		})
		if at < 0 {
			at = len(uses.Scripts)
		}
		uses.Scripts = slices.Insert(uses.Scripts, at, script)
	}
	for _, id := range m.Extensions {
		if workspace.ValidExtension(id) && len(uses.Extensions) < workspace.MaxExtensions && !slices.ContainsFunc(uses.Extensions, func(o string) bool { return strings.EqualFold(o, id) }) {
			uses.Extensions = append(uses.Extensions, id)
		}
	}
	if len(m.Settings) > 0 {
		settings := map[string]any{}
		maps.Copy(settings, m.Settings)
		_ = json.Unmarshal(uses.Settings, &settings) // of the same name replace those of the Feature
		uses.Settings, _ = json.Marshal(settings)
	}
	for _, i := range m.Ignored {
		p.ignore(i)
	}
}

// sweep removes built images that no workspace uses.
func (b *Builder) sweep(ctx context.Context) error {
	built, err := b.cfg.Docker.Built(ctx)
	if err != nil {
		return err
	}
	for _, image := range built {
		if time.Since(image.Created) < unusedFor {
			continue
		}
		if len(image.Names) == 0 {
			err = errors.Join(err, b.cfg.Docker.RemoveBuilt(ctx, image.ID))
		}
		for _, name := range image.Names {
			used, failed := b.cfg.Store.BuiltImagesInUse(ctx, imageref.BuiltPrefix) // each time: a removal takes a while
			if failed != nil {
				return errors.Join(err, failed)
			}
			if !slices.ContainsFunc(used, func(o string) bool { return imageref.Same(o, strings.TrimSuffix(name, "-base")) }) {
				err = errors.Join(err, b.cfg.Docker.RemoveBuilt(ctx, name))
			}
		}
	}
	return err
}
