package docker

import (
	"archive/tar"
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/base/trust"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/authority"
)

// companyServer answers https requests in a workspace as a server of the company would.
const companyServer = `
const pages = {
  "/repository/info/refs": "1234567890123456789012345678901234567890\trefs/heads/main\n",
  "/example.com/module/@v/list": "v1.2.3\n",
  "/example.com/module/@v/v1.2.3.info": '{"Version": "v1.2.3"}',
  "/example.com/module/@v/v1.2.3.mod": "module example.com/module\n",
  "/simple/package/": '<a href="package-1.2.3-py3-none-any.whl">package</a>',
  "/package": JSON.stringify({ name: "package", "dist-tags": { latest: "1.2.3" }, versions: { "1.2.3": { name: "package", version: "1.2.3" } } }),
};
const fs = require("node:fs");
require("node:https").createServer({ cert: fs.readFileSync("/company/cert.pem"), key: fs.readFileSync("/company/key.pem") }, (q, s) => {
  s.writeHead(pages[q.url.split("?")[0]] ? 200 : 404, { "content-type": q.url.startsWith("/simple") ? "text/html" : "application/json" });
  s.end(pages[q.url.split("?")[0]] || "none");
}).listen(3457, "localhost", () => console.log("listens"));
`

const javaProgram = `
import java.net.*;
public class Fetch {
  public static void main(String[] a) throws Exception {
    System.out.print(new String(new URL(a[0]).openStream().readAllBytes()));
  }
}
`

// putCompany copies what the server of the company needs into a container.
func putCompany(t *testing.T, r *Runtime, container string, a *authority.Authority) {
	t.Helper()
	certificate, key := a.Issue()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for name, content := range map[string]string{"cert.pem": string(certificate), "key.pem": string(key), "server.js": companyServer, "Fetch.java": javaProgram} {
		check(t, tw.WriteHeader(&tar.Header{Name: "company/" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}))
		must(t)(tw.Write([]byte(content)))
	}
	check(t, tw.Close())
	must(t)(r.engine.API.CopyToContainer(t.Context(), container, client.CopyToContainerOptions{DestinationPath: "/", Content: &b}))
}

// The tools of the default image connect to a server whose certificate is the company's, also
// without variables where they have none of their own, and still trust the public authorities.
// About 10 s on an idle machine, of which Java, npm and pip take most.
func TestDefaultImageTrustsCompany(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	r := newRuntime(t, func(c *Config) { c.Authorities, c.IDEImage = a.PEM, fakeIDE(t) })
	spec := newHome()
	spec.Image, spec.UID = harness.WorkspaceImage(), ownUID
	spec.Env = map[string]string{"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
	up := startSpec(t, r, spec)
	putCompany(t, r, up.ContainerID, a)
	bash := func(script string) (string, error) {
		return inside(t.Context(), r, up.ContainerID, "bash", "-c", script)
	}
	if out, err := bash("(setsid node /company/server.js > /tmp/server.log 2>&1 &); for i in $(seq 100); do grep -q listens /tmp/server.log && exit; sleep 0.1; done; cat /tmp/server.log; exit 1"); err != nil {
		t.Fatalf("the server: %v, %s", err, out)
	}
	const at = "https://localhost:3457"
	var all sync.WaitGroup
	for name, c := range map[string]struct{ script, want string }{
		"curl":                 {"curl -sS " + at + "/example.com/module/@v/list", "v1.2.3"},
		"curl without a list":  {"env -i curl -sS " + at + "/example.com/module/@v/list", "v1.2.3"},
		"wget, of GnuTLS":      {"wget -qO- " + at + "/example.com/module/@v/list", "v1.2.3"},
		"git":                  {"git ls-remote " + at + "/repository", "refs/heads/main"},
		"go":                   {"cd $(mktemp -d) && GOPROXY=" + at + " GOFLAGS=-mod=mod GONOSUMDB=* GOMODCACHE=$PWD go list -m -versions example.com/module", "v1.2.3"},
		"node":                 {`node -e 'require("https").get("` + at + `/repository/info/refs", r => r.pipe(process.stdout))'`, "refs/heads/main"},
		"npm":                  {"npm view --registry=" + at + " package dist-tags.latest", "1.2.3"},
		"python":               {`python3 -c 'import urllib.request as u; print(u.urlopen("` + at + `/simple/package/").read())'`, "1.2.3"},
		"pip":                  {"pip index versions --index-url " + at + "/simple package 2>/dev/null", "1.2.3"},
		"java":                 {"java /company/Fetch.java " + at + "/repository/info/refs", "refs/heads/main"},
		"the list is complete": {"grep -c BEGIN.CERTIFICATE /etc/ssl/certs/ca-certificates.crt $SSL_CERT_FILE | grep -v ':[0-9][0-9][0-9]$' || echo both", "both"},
	} {
		all.Go(func() {
			if out, err := bash(c.script); err != nil || !strings.Contains(out, c.want) {
				t.Errorf("%s: %v, %s", name, err, out)
			}
		})
	}
	all.Wait()
}

// An image without authorities, a shell and a C library trusts the company's as well. Variables
// of the owner and of the image stay, and nobody can change the files.
func TestAnyImageTrustsCompany(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	r := newRuntime(t, func(c *Config) { c.Authorities, c.IDEImage = a.PEM, fakeIDE(t) })
	link, reg, dir := byte(tar.TypeSymlink), byte(tar.TypeReg), byte(tar.TypeDir)
	for name, image := range map[string][]tar.Header{
		"nothing": {{Name: "file", Typeflag: reg, Mode: 0o644, Linkname: "content"}},
		"as in Fedora": {
			{Name: "etc/pki/tls/certs/", Typeflag: dir, Mode: 0o755}, {Name: "etc/ssl/", Typeflag: dir, Mode: 0o755},
			{Name: "etc/ssl/certs", Typeflag: link, Linkname: "/etc/pki/tls/certs"},
			{Name: "etc/pki/extracted/", Typeflag: dir, Mode: 0o755}, {Name: "etc/pki/extracted/list.pem", Typeflag: reg, Mode: 0o644, Linkname: string(authority.New(t).PEM)},
			{Name: "etc/pki/tls/certs/ca-bundle.crt", Typeflag: link, Linkname: "/etc/pki/extracted/list.pem"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := newHome()
			spec.Image, spec.UID = importImage(t, r, []string{"ENV GIT_SSL_CAINFO=/of/image"}, files(t, image...)), ownUID
			spec.Env = map[string]string{"PIP_CERT": "/of/owner"}
			up := startSpec(t, r, spec)
			putCompany(t, r, up.ContainerID, a)
			putProbe(t, r, up.ContainerID, "")
			for _, variables := range []string{"with", "without"} {
				if got := run[string](t, up, "/probe", "trusts", "/company/cert.pem", "/company/key.pem", variables); got != "<nil>" {
					t.Errorf("%s variables: %s", variables, got)
				}
			}
			want := []string{"GIT_SSL_CAINFO=/of/image", "PIP_CERT=/of/owner", "SSL_CERT_FILE=" + trust.BundlePath, "NODE_EXTRA_CA_CERTS=" + trust.Dir + "/company.crt"}
			for _, env := range [][]string{run[[]string](t, up, "/probe", "env"), procFile(t, ideOf(t, inspectOf(t, r, up)), "environ")} {
				for _, variable := range want {
					if !slices.Contains(env, variable) {
						t.Errorf("no %s in %q", variable, env)
					}
				}
			}
			for _, file := range []string{trust.BundlePath, trust.Dir + "/x", "/etc/ssl/certs/x"} {
				if got := run[string](t, up, "/probe", "write", file); !strings.Contains(got, "permission denied") {
					t.Errorf("writing %s: %s", file, got)
				}
			}
		})
	}
}
