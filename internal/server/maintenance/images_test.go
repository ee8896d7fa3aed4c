package maintenance

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"
	"github.com/opencontainers/go-digest"

	"codehub/internal/cli/terminal"
	"codehub/internal/runtime/docker/imagefile"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace/imageref"
)

const (
	digestA = "sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	digestB = "sha256:0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"
)

func TestImagesOfFileAreChosen(t *testing.T) {
	t.Parallel()
	image := func(name, arch string, digests ...digest.Digest) imagefile.Image {
		i := imagefile.Image{Digests: digests, Architecture: arch}
		if name != "" {
			i.Names = []string{name}
		}
		return i
	}
	tagged := []usedImage{{"codehub/ide:latest", "CODEHUB_IDE_IMAGE", "IDE"}, {"localhost/team/workspace:2", "CODEHUB_DEFAULT_IMAGE", "new workspaces"}}
	pinned := []usedImage{{"registry.example.com/a/ide@" + digestA, "CODEHUB_IDE_IMAGE", "IDE"}, {"workspace@" + digestB, "CODEHUB_DEFAULT_IMAGE", "new workspaces"}}
	as := func(name string) []usedImage { return []usedImage{{Image: name}} }
	for what, c := range map[string]struct {
		all   []imagefile.Image
		used  []usedImage
		named bool
		want  string // names; or the error
	}{
		"by name":           {[]imagefile.Image{image("docker.io/codehub/ide:0.1.0", "amd64", digestA)}, tagged, false, "codehub/ide:latest"},
		"several":           {[]imagefile.Image{image("codehub/ide:latest", ""), image("codehub/workspace:latest", "amd64"), image("codehub/workspace-slim:latest", "amd64")}, tagged, false, "codehub/ide:latest localhost/team/workspace:2 skipped codehub/workspace-slim:latest"},
		"by digest":         {[]imagefile.Image{image("", "amd64", digestB)}, pinned, false, "codehub/workspace:sha256-" + strings.TrimPrefix(digestB, "sha256:")},
		"by the index":      {[]imagefile.Image{image("", "amd64", digestA, digestB), image("", "arm64", digestA)}, pinned, false, "codehub/ide:sha256-" + strings.TrimPrefix(digestA, "sha256:")},
		"another release":   {[]imagefile.Image{image("codehub/ide:0.2.0", "amd64", digestB+"0")}, pinned, false, "CODEHUB_IDE_IMAGE names registry.example.com/a/ide@" + digestA},
		"without digest":    {[]imagefile.Image{image("codehub/ide:latest", "amd64")}, pinned, false, "docker save writes has no digest"},
		"another processor": {[]imagefile.Image{image("codehub/ide:latest", "arm64")}, tagged, false, "the image is for arm64, and Docker here runs amd64"},
		"unknown":           {[]imagefile.Image{image("codehub/server:1", "amd64", digestA)}, tagged, false, "no setting names the image codehub/server:1@" + digestA},
		"as":                {[]imagefile.Image{image("", "amd64", digestA)}, as("localhost/tools:1"), true, "localhost/tools:1"},
		"as with digest":    {[]imagefile.Image{image("", "amd64", digestA)}, as("codehub/next@" + digestA), true, "codehub/next:sha256-" + strings.TrimPrefix(digestA, "sha256:")},
		"as another digest": {[]imagefile.Image{image("codehub/ide:1", "amd64", digestA)}, as("codehub/next@" + digestB), true, "it has codehub/ide:1@" + digestA + ", and --as names"},
		"as several":        {[]imagefile.Image{image("a", "amd64"), image("b", "amd64")}, as("localhost/tools:1"), true, "it has 2 images"},
	} {
		out, skipped, err := chooseImages(c.all, "amd64", c.used, c.named)
		var got []string
		for _, l := range out {
			got = append(got, l.Name)
		}
		for _, s := range skipped {
			got = append(got, "skipped "+s)
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if text := strings.Join(got, " "); text != c.want && (err == nil || !strings.Contains(text, c.want)) {
			t.Errorf("%s: %q, want %q", what, text, c.want)
		}
	}
}

// imageCommands run with an IDE that a digest names, and a default image that a tag names.
type imageCommands struct {
	testing.TB
	ide, workspace string
}

func (c imageCommands) run(args ...string) (out, errs string, exit int) {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), "codehub", append([]string{"images"}, args...)...)
	cmd.Env = append(os.Environ(), "CODEHUB_IDE_IMAGE="+c.ide, "CODEHUB_DEFAULT_IMAGE="+c.workspace, "CODEHUB_DATA_DIR="+c.TempDir())
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		c.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func (c imageCommands) says(text string, args ...string) {
	c.Helper()
	if out, errs, exit := c.run(args...); exit != terminal.ExitOK || !strings.Contains(out, text) {
		c.Errorf("%v: exit %d\n%s%s; want %q", args, exit, out, errs, text)
	}
}

func (c imageCommands) refuses(text string, args ...string) {
	c.Helper()
	if out, errs, exit := c.run(args...); exit != terminal.ExitError || !strings.Contains(errs, text) {
		c.Errorf("%v: exit %d\n%s%s; want %q", args, exit, out, errs, text)
	}
}

func (c imageCommands) here(want ...bool) {
	c.Helper()
	out, errs, _ := c.run("list", "-o", "json")
	var list []listedImage
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		c.Fatalf("%v: %s", err, errs)
	}
	for i, l := range list {
		if l.Here != want[i] || l.Here && (l.ID == "" || l.Size == 0 || imageref.Digest(l.Image) != l.Digest) {
			c.Errorf("list: %+v, want %v", l, want[i])
		}
	}
}

func TestImagesAreLoadedPulledAndListed(t *testing.T) {
	harness.NeedsDocker(t)
	t.Parallel()
	docker, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.NewString()
	path, digests := dockertest.OCIArchive(t, dockertest.Archived{Content: "ide" + id, Under: true}, dockertest.Archived{Name: "codehub/" + id + ":1", Content: "workspace" + id})
	registry := dockertest.NewRegistry(t)
	c := imageCommands{TB: t, ide: "registry.invalid/team/ide-" + id + "@" + digests[0].String(), workspace: "registry.invalid/" + id + ":2"}
	pulled := c
	pulled.workspace = registry.Add("pulled", dockertest.Layers(1, 1<<10, 0))
	names := []string{imageref.Loaded(c.ide), c.workspace, pulled.workspace, "localhost/" + id + ":1"}
	t.Cleanup(func() {
		for _, name := range names {
			_, _ = docker.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true})
		}
	})

	c.here(false, false)
	c.says("Missing: 2.", "list")
	c.says("Loaded "+c.workspace+" (new workspaces).", "load", path)
	c.here(true, true)
	c.says(c.ide+" is here.", "load", path)
	pulled.says(c.ide+" is here.\nPulling "+pulled.workspace+"\nPulled "+pulled.workspace, "pull")
	c.refuses("--as names one", "load", path, "--as", names[3])

	other := c
	other.ide = imageref.WithDigest(c.ide, digestA)
	other.workspace = "localhost/" + uuid.NewString()
	other.refuses("no setting names the image", "load", path)

	saved := filepath.Join(t.TempDir(), "saved.tar.gz")
	content, err := docker.ImageSave(t.Context(), []string{c.workspace})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	file, err := os.Create(saved)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zipped := gzip.NewWriter(file)
	if _, err := io.Copy(zipped, content); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := docker.ImageRemove(t.Context(), c.workspace, client.ImageRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	c.here(true, false)
	c.says("Loaded "+c.workspace, "load", saved)
	c.here(true, true)
	c.says("Loaded "+names[3]+".", "load", saved, "--as", names[3])
	c.refuses("docker save writes has no digest", "load", saved, "--as", "localhost/other@"+digestA)
}
