package images

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"codehub/internal/runtime/docker/imagefile"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
)

// An image of a release is the same OCI archive each time. Docker takes it again, and pulls it by its
// digest once the archive is in a registry.
func TestReleasedImageLoads(t *testing.T) {
	harness.NeedsDocker(t)
	t.Parallel()
	docker, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	name := "codehub-test/" + uuid.NewString() + ":0.1.0"
	t.Cleanup(func() {
		_, _ = docker.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true})
	})
	path, _ := dockertest.OCIArchive(t, dockertest.Archived{Content: name})
	load := func(path string) imagefile.Image {
		t.Helper()
		f, err := imagefile.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := f.WriteTo(&b, imagefile.Tagged{Image: f.Images[0], Name: name}); err != nil {
			t.Fatal(err)
		}
		res, err := docker.ImageLoad(t.Context(), &b)
		if err == nil {
			_, err = io.Copy(io.Discard, res) // until it is loaded
			res.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return f.Images[0]
	}
	first := load(path)
	write := func(out string) string {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", `source ../scripts/oci.sh; oci_layers=$1; archived_image "$2" "$3" "$3"`, "-", t.TempDir(), out, name)
		cmd.Stderr = os.Stderr
		digest, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(digest))
	}
	one, two := filepath.Join(t.TempDir(), "one.tar"), filepath.Join(t.TempDir(), "two.tar")
	digest, again := write(one), write(two)
	a, _ := os.ReadFile(one)
	b, _ := os.ReadFile(two)
	if digest != again || len(a) == 0 || !bytes.Equal(a, b) {
		t.Errorf("two archives of one image differ: %s, %s", digest, again)
	}
	found := load(one)
	if found.ID != first.ID || len(found.Digests) != 1 || found.Digests[0].String() != digest || found.Names[0] != "docker.io/"+name {
		t.Errorf("%+v, want the digest %s and the ID %s", found, digest, first.ID)
	}

	ref := dockertest.Distribution(t) + "/released@" + digest
	push(t, one, "0.1.0", ref)
	pulled, err := docker.ImagePull(t.Context(), ref, client.ImagePullOptions{})
	if err == nil {
		err = pulled.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = docker.ImageRemove(context.Background(), ref, client.ImageRemoveOptions{})
	})
	if info, err := docker.ImageInspect(t.Context(), ref); err != nil || info.ID != first.ID.String() {
		t.Errorf("pulled: %s, %v; want %s", info.ID, err, first.ID)
	}
}

// push copies an image from an OCI archive to a registry.
func push(t *testing.T, path, tag, ref string) {
	t.Helper()
	from, err := oci.NewFromTar(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	to, err := remote.NewRepository(ref)
	if err != nil {
		t.Fatal(err)
	}
	to.PlainHTTP = true
	if _, err := oras.Copy(t.Context(), from, tag, to, tag, oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
}
