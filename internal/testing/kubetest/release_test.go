package kubetest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
)

// The chart of a release is the same bytes each time, has the digests of the release's images, and
// comes back from a registry as it was pushed, by helm or as an OCI image layout.
func TestChartOfRelease(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	images := "server\tamd64\t" + digest + "\tcodehub-server_1.2.3_linux_amd64.oci.tar\nide\tamd64\t" + digest + "\tcodehub-ide_1.2.3_linux_amd64.oci.tar\n"
	var first string
	var packed []byte
	for range 2 {
		dir := t.TempDir()
		for name, content := range map[string]string{"images.txt": images, "checksums.txt": "0123  codehub_1.2.3_linux_amd64.tar.gz\n0123  codehub-chart-1.2.3.tgz\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command(filepath.Join(filepath.Dir(script()), "release-chart.sh"), "v1.2.3", dir).CombinedOutput(); err != nil {
			t.Fatalf("release-chart.sh: %v: %s", err, out)
		}
		var all []byte
		for _, name := range []string{"codehub-chart-1.2.3.tgz", "codehub-chart-1.2.3.oci.tar", "checksums.txt"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		if packed != nil && !bytes.Equal(all, packed) {
			t.Error("two runs made different bytes")
		}
		first, packed = dir, all
	}
	chart, archive := filepath.Join(first, "codehub-chart-1.2.3.tgz"), filepath.Join(first, "codehub-chart-1.2.3.oci.tar")

	registry := dockertest.Distribution(t)
	helm := func(args ...string) string {
		t.Helper()
		out, err := Helm(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	helm("push", "--plain-http", chart, "oci://"+registry+"/charts")
	pushLayout(t, archive, "http://"+registry+"/v2/copied/codehub/")
	want, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{"charts", "copied"} {
		from, dir := "oci://"+registry+"/"+place+"/codehub", t.TempDir()
		helm("pull", "--plain-http", "--version", "1.2.3", "--destination", dir, from)
		if got, err := os.ReadFile(filepath.Join(dir, "codehub-1.2.3.tgz")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the chart came back as %d bytes, not %d: %v", place, len(got), len(want), err)
		}
		rendered := helm("template", "codehub", from, "--plain-http", "--version", "1.2.3",
			"--set", "url=https://code.example.com,workspaceURL=https://*.ws.example.com,image.repository=r.example.com/codehub/server,ideImage=r.example.com/codehub/ide:1,defaultImage=r.example.com/codehub/workspace:1,archive.url=s3://bucket/prefix,database.url=postgres://db/codehub")
		for _, part := range []string{"image: r.example.com/codehub/server:1.2.3", `app.kubernetes.io/version: "1.2.3"`, "helm.sh/chart: codehub-1.2.3"} {
			if !strings.Contains(rendered, part) {
				t.Errorf("%s: the manifests have no %s", place, part)
			}
		}
	}
	if shown := helm("show", "chart", chart); !strings.Contains(shown, "ide linux/amd64 "+digest) {
		t.Errorf("the chart does not have the digests of the images:\n%s", shown)
	}
	if values := helm("show", "values", chart); !strings.Contains(values, "registry.example.com/codehub/workspace:1.2.3") {
		t.Error("the examples in the values have another version")
	}
	sums, err := os.ReadFile(filepath.Join(first, "checksums.txt"))
	if err != nil || strings.Count(string(sums), "\n") != 3 || strings.Contains(string(sums), "0123  codehub-chart") {
		t.Errorf("checksums.txt is %q, %v", sums, err)
	}
}

// pushLayout uploads what an OCI image layout has to a repository of a registry.
func pushLayout(t *testing.T, archive, repository string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
	var index struct {
		Manifests []struct {
			MediaType, Digest string
			Annotations       map[string]string
		}
	}
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index.json is %s: %v", files["index.json"], err)
	}
	manifest := index.Manifests[0]
	for name, content := range files {
		hash, blob := strings.CutPrefix(name, "blobs/sha256/")
		if !blob || hash == "" || "sha256:"+hash == manifest.Digest {
			continue
		}
		location := send(t, http.MethodPost, repository+"blobs/uploads/", "", nil)
		if !strings.Contains(location, "?") {
			location += "?"
		}
		send(t, http.MethodPut, location+"&digest=sha256:"+hash, "application/octet-stream", content)
	}
	content := files["blobs/"+strings.Replace(manifest.Digest, ":", "/", 1)]
	send(t, http.MethodPut, repository+"manifests/"+manifest.Annotations["org.opencontainers.image.ref.name"], manifest.MediaType, content)
}

// send sends a request that the registry has to accept, and returns the Location of its answer.
func send(t *testing.T, method, url, kind string, body []byte) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", kind)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if answer, _ := io.ReadAll(res.Body); res.StatusCode/100 != 2 {
		t.Fatal(fmt.Errorf("%s %s: %s: %s", method, url, res.Status, answer))
	}
	return res.Header.Get("Location")
}
