package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/wall"
	"codehub/internal/testing/harness"
)

// pushImage pushes a variant of the test image to the registry under a new name and
// removes it from Docker. The pulled image is removed when all tests that share the
// runtime have ended.
func pushImage(all, t *testing.T, r *Runtime, registry string) string {
	t.Helper()
	ref := registry + "/test/" + uuid.NewString() + ":v1"
	pushVariant(t, r, ref)
	all.Cleanup(func() {
		_, err := r.engine.API.ImageRemove(context.Background(), ref, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		if err != nil && !errdefs.IsNotFound(err) {
			all.Error(err)
		}
	})
	return ref
}

// republish makes the tag of a pushed image name another image in its registry alone.
func republish(t *testing.T, r *Runtime, ref string) {
	t.Helper()
	base := strings.TrimSuffix(ref, ":v1")
	pushVariant(t, r, base+":v2")
	registry, path, _ := strings.Cut(base, "/")
	const kind = "application/vnd.docker.distribution.manifest.v2+json"
	call := func(method, tag string, body io.Reader) []byte {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+registry+"/v2/"+path+"/manifests/"+tag, body)
		check(t, err)
		req.Header.Set("Accept", kind)
		req.Header.Set("Content-Type", kind)
		res, err := http.DefaultClient.Do(req)
		check(t, err)
		defer res.Body.Close()
		content, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode >= 300 {
			t.Fatalf("%s %s: %s (%v)", method, tag, res.Status, err)
		}
		return content
	}
	call(http.MethodPut, "v1", bytes.NewReader(call(http.MethodGet, "v2", nil)))
}

// takeImage removes an image by its ID, with all its names.
func takeImage(t *testing.T, r *Runtime, id string) {
	t.Helper()
	if _, err := r.engine.API.ImageRemove(t.Context(), id, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
		t.Error(err)
	}
}

// pushVariant pushes a variant of the test image, and removes it from Docker.
func pushVariant(t *testing.T, r *Runtime, ref string) {
	t.Helper()
	ctx := t.Context()
	// Exported with an additional file and imported again, so that it has a layer
	// of its own that the pull has to fetch.
	c, err := r.engine.API.ContainerCreate(ctx, client.ContainerCreateOptions{Image: harness.TestImage()})
	check(t, err)
	defer func() {
		if err := r.engine.Discard(ctx, c.ID); err != nil {
			t.Error(err)
		}
	}()
	var unique bytes.Buffer
	content := make([]byte, 1<<20)
	_, _ = rand.Read(content)
	tw := tar.NewWriter(&unique)
	err = tw.WriteHeader(&tar.Header{Name: "unique", Size: int64(len(content)), Mode: 0o644})
	if err == nil {
		_, err = tw.Write(content)
	}
	check(t, errors.Join(err, tw.Close()))
	must(t)(r.engine.API.CopyToContainer(ctx, c.ID, client.CopyToContainerOptions{DestinationPath: "/", Content: &unique}))
	rootfs, err := r.engine.API.ContainerExport(ctx, c.ID, client.ContainerExportOptions{})
	check(t, err)
	defer rootfs.Close()
	imported, err := r.engine.API.ImageImport(ctx, client.ImageImportSource{Source: rootfs, SourceName: "-"}, ref, client.ImageImportOptions{
		Changes: []string{"USER 1000:1000", "WORKDIR /home/coder", `ENTRYPOINT ["/testserver"]`, "ENV HOME=/home/coder", "LABEL " + account.LabelIDE + "=" + account.IDEIncluded},
	})
	check(t, err)
	drain(t, imported)
	pushed, err := r.engine.API.ImagePush(ctx, ref, client.ImagePushOptions{RegistryAuth: "e30="})
	check(t, err)
	check(t, pushed.Wait(ctx))
	if _, err := r.engine.API.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
		t.Error(err)
	}
}

func drain(t *testing.T, r io.ReadCloser) {
	t.Helper()
	must(t)(io.Copy(io.Discard, r))
	check(t, r.Close())
}

// removeWall removes the installation's walls.
func removeWall(_ context.Context, r *Runtime) error {
	return errors.Join(wall.Remove(r.network.Table()), wall.Remove(r.builder.Network.Table()))
}
