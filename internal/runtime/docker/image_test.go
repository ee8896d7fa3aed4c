package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// importImage creates an image from a tar archive and removes it at the end of the
// test.
func importImage(t *testing.T, r *Runtime, changes []string, rootfs []byte) string {
	t.Helper()
	ref := "codehub-test/" + engine.RandomHex(8) + ":latest"
	res, err := r.engine.API.ImageImport(t.Context(), client.ImageImportSource{Source: bytes.NewReader(rootfs), SourceName: "-"}, ref,
		client.ImageImportOptions{Changes: append(changes, "LABEL "+engine.LabelInstallation+"="+r.cfg.Installation)})
	check(t, err)
	drain(t, res)
	return ref
}

// homeTar is a file system with a home that has special modes, owners, links and
// attributes.
func homeTar(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "home/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "home/coder/", Typeflag: tar.TypeDir, Mode: 0o2751, Uid: 1000, Gid: 1001},
		{Name: "home/coder/.dot", Typeflag: tar.TypeReg, Mode: 0o600, Uid: 1000, Gid: 1000},
		{Name: "home/coder/locked", Typeflag: tar.TypeReg, Mode: 0, Uid: 1000, Gid: 1000},
		{Name: "home/coder/setuid", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 0, Gid: 0},
		{Name: "home/coder/foreign", Typeflag: tar.TypeReg, Mode: 0o640, Uid: 4711, Gid: 4712},
		{Name: "home/coder/link", Typeflag: tar.TypeSymlink, Linkname: "/nowhere", Mode: 0o777, Uid: 1000, Gid: 1000},
		{Name: "home/coder/hard", Typeflag: tar.TypeLink, Linkname: "home/coder/.dot", Mode: 0o600, Uid: 1000, Gid: 1000},
		{Name: "home/coder/empty/", Typeflag: tar.TypeDir, Mode: 0o1777, Uid: 1000, Gid: 1000},
		{Name: "home/coder/closed/", Typeflag: tar.TypeDir, Mode: 0o100, Uid: 1000, Gid: 1000},
		{Name: "home/coder/closed/in it", Typeflag: tar.TypeReg, Mode: 0o644, Uid: 1000, Gid: 1000},
	} {
		check(t, tw.WriteHeader(&h))
	}
	check(t, tw.Close())
	return b.Bytes()
}

func TestSeedKeepsMetadata(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	image := importImage(t, r, []string{"USER 1000"}, homeTar(t))
	want := readTreeOf(t, r, image, mount.Mount{})
	for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
		t.Run(storage, func(t *testing.T) {
			spec := runtime.VolumeSpec{Workspace: newHome().Workspace, Storage: storage, Claim: "h", Image: image}
			check(t, r.CreateVolume(t.Context(), spec, nil))
			if diff := cmp.Diff(want, direct{r: r, storage: storage}.home(t, spec.Workspace)); diff != "" {
				t.Errorf("home (-image +volume):\n%s", diff)
			}
			if err := r.RemoveVolume(t.Context(), spec.Workspace, "h", nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCancelHangingPull(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never responds
	check(t, err)
	t.Cleanup(func() { l.Close() })
	asked := make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		close(asked)
		<-t.Context().Done()
	}()

	r := newRuntime(t, nil)
	enough := errors.New("no progress for too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	spec := runtime.VolumeSpec{
		Workspace: newHome().Workspace, Storage: workspace.StorageDockerVolume, Claim: "h",
		Image: l.Addr().String() + "/codehub/hangs:latest",
	}
	done := make(chan error, 1)
	go func() { done <- r.CreateVolume(ctx, spec, nil) }()
	select {
	case <-asked:
	case err := <-done:
		t.Fatalf("the pull ended: %v", err)
	}
	cancel(enough)
	err = <-done
	var pull *runtime.PullError
	if !errors.Is(err, enough) || errors.Is(err, runtime.ErrUnreachable) || errors.As(err, &pull) {
		t.Fatalf("error = %v, want the caller's own reason", err)
	}
	if err := r.RemoveVolume(t.Context(), spec.Workspace, "h", nil); err != nil {
		t.Error(err)
	}
}

// A missing default image without a digest is not pulled, although the registry has an
// image of that name.
func TestMissingDefaultImageIsNotPulled(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	other := newRuntime(t, nil) // with another default image
	ref := pushImage(t, t, other, dockertest.Distribution(t))
	withDefault := func(image string) (*Runtime, *health.Monitor) {
		conditions := &health.Monitor{}
		return newRuntime(t, func(c *Config) { c.DefaultImage, c.Conditions = image, conditions }), conditions
	}
	volume := func(image string) runtime.VolumeSpec {
		return runtime.VolumeSpec{Workspace: newHome().Workspace, Storage: workspace.StorageDockerVolume, Claim: "h", Image: image}
	}
	refused := func(r *Runtime, image, says string) {
		t.Helper()
		var pull *runtime.PullError
		if err := r.CreateVolume(t.Context(), volume(image), nil); !errors.As(err, &pull) || !strings.Contains(pull.Message, says) {
			t.Errorf("a home from the missing image %s: %v, want an error that says %q", image, err, says)
		}
	}

	r, conditions := withDefault(ref)
	refused(r, ref, "CODEHUB_DEFAULT_IMAGE")
	check(t, r.Prepare(t.Context()))
	if err := conditions.Err("default-image"); err == nil || !strings.Contains(err.Error(), ref) {
		t.Errorf("condition = %v, want one that names the image", err)
	}
	missing := "codehub/" + engine.RandomHex(8)
	bare, _ := withDefault(missing)
	refused(bare, missing+":latest", "make image")
	refused(bare, "docker.io/codehub/"+engine.RandomHex(8)+":1", "make image")

	pinned := strings.TrimSuffix(ref, ":v1") + "@" + digestOf(t, ref)
	r, conditions = withDefault(pinned)
	check(t, r.Prepare(t.Context()))
	if err := conditions.Err("default-image"); err == nil || !strings.Contains(err.Error(), "codehub images load FILE") {
		t.Errorf("condition before the pull = %v", err)
	}
	if err := r.CreateVolume(t.Context(), volume(pinned), nil); err != nil {
		t.Errorf("the default image was not pulled by its digest: %v", err)
	}
	check(t, r.Prepare(t.Context()))
	if err := conditions.Err("default-image"); err != nil {
		t.Errorf("condition = %v", err)
	}
	if err := other.CreateVolume(t.Context(), volume(ref), nil); err != nil {
		t.Errorf("an image that a user named was not pulled: %v", err)
	}
}

// digestOf asks the registry for the digest of an image.
func digestOf(t *testing.T, ref string) string {
	t.Helper()
	registry, path, _ := strings.Cut(strings.TrimSuffix(ref, ":v1"), "/")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, "http://"+registry+"/v2/"+path+"/manifests/v1", nil)
	check(t, err)
	req.Header.Set("Accept", "application/vnd.docker.distribution.manifest.v2+json")
	res, err := http.DefaultClient.Do(req)
	check(t, err)
	res.Body.Close()
	digest := res.Header.Get("Docker-Content-Digest")
	if digest == "" {
		t.Fatalf("the registry has no digest: %s", res.Status)
	}
	return digest
}
