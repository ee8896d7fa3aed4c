// Package images tests what the builds of images have in common.
package images

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/authority"
)

// With CODEHUB_CA_FILE a build fetches from servers with a certificate of the company's authority,
// and keeps what the system trusts.
func TestBuildsTrustCompany(t *testing.T) {
	harness.NeedsDocker(t) // debian.sh asks for its architecture
	t.Parallel()
	a := authority.New(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/package/-/package-1.2.3.tgz" {
			_, _ = w.Write([]byte("packed"))
		}
	}))
	server.TLS = a.Server()
	server.StartTLS()
	t.Cleanup(server.Close)
	run := func(file string) (string, error) {
		cmd := exec.Command("bash", "-euc", `source ../scripts/image.sh && source debian.sh && work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && trust_company
			fetch package 1.2.3; fetched; cat "$(archive package 1.2.3)"; [ -z "$authorities" ] || grep -c BEGIN.CERTIFICATE "$authorities"`)
		cmd.Env = append(os.Environ(), "CODEHUB_CA_FILE="+file, "npm_config_registry="+server.URL, "npm_config_fetch_retries=0", "XDG_CACHE_HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(a.File())
	if lines := strings.Fields(out); err != nil || len(lines) != 1 || !strings.HasPrefix(lines[0], "packed") || len(lines[0]) < len("packed100") {
		t.Errorf("with the authority: %v, %s", err, out)
	}
	if out, err := run(""); err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("without it: %v, %s", err, out)
	}
}

// A stored image names the processor that it is for, also another one than Docker's.
func TestStoredImageNamesProcessor(t *testing.T) {
	harness.NeedsDocker(t)
	t.Parallel()
	docker, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		name := "codehub-test/" + uuid.NewString() + ":" + arch
		t.Cleanup(func() {
			_, _ = docker.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true})
		})
		cmd := exec.Command("bash", "-euc", `source ../scripts/image.sh && source debian.sh && work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
			tar --create --file="$work/layer.tar" debian.sh && store_image "$1" "$work/layer.tar" '{"Cmd":["/start"],"Labels":{"of":"a test"}}'`, "-", name)
		cmd.Env = append(os.Environ(), "IMAGE_ARCH="+arch, "XDG_CACHE_HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		info, err := docker.ImageInspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Architecture != arch || info.Os != "linux" || len(info.RootFS.Layers) != 1 || info.Config.Cmd[0] != "/start" || info.Config.Labels["of"] != "a test" {
			t.Errorf("for %s: %s/%s, %+v", arch, info.Os, info.Architecture, info.Config)
		}
	}
}
