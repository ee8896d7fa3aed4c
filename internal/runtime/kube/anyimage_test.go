package kube

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/base/trust"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness/authority"
	"codehub/internal/workspace"
)

// whoami is what the test's agent prints of its user.
type whoami struct {
	Name, Home, Group string
	Env               map[string]string
	Temp              string // why it cannot write to /tmp
	UID, Effective    int
	HostRoot          int      // uid on the node of the container's root
	Capabilities      string   // effective
	Users             string   // why it cannot replace the list of users
	Lists             []string // of trusted authorities: those of Debian and Fedora, and the workspace's
}

// trusting checks that a workspace trusts the company and the public, or what its image trusts.
func (w whoami) trusting(t *testing.T, a *authority.Authority, image string) {
	t.Helper()
	for i, list := range w.Lists {
		if i == 1 && w.Effective == 0 { // only where the image has it
			continue
		}
		if !strings.HasSuffix(list, string(a.PEM)) || image == "" && strings.Count(list, "BEGIN CERTIFICATE") < 50 || image != "" && list != image+string(a.PEM) {
			t.Errorf("list %d has %d bytes:\n%.200s", i, len(list), list)
		}
	}
	if w.Env["SSL_CERT_FILE"] != trust.BundlePath {
		t.Errorf("variables: %q", w.Env)
	}
}

// testAnyImage starts workspaces of images that know nothing of codehub.
func testAnyImage(t *testing.T, c *cluster) {
	a, own := authority.New(t), string(authority.New(t).PEM)
	for name, test := range map[string]struct {
		files   map[string]string
		changes []string
		shell   string
		path    string
	}{
		"nothing": {
			files: map[string]string{"it": ""},
			shell: "/opt/codehub-ide/bin/sh", path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/home/coder/.local/bin:/opt/codehub:/opt/codehub-ide/bin",
		},
		"other users": {
			files: map[string]string{
				"etc/passwd": "root:x:0:0::/root:/bin/sh\ncoder:x:70:70::/srv:/bin/false\n", "etc/group": "coder:x:70:\nwheel:x:10:root\n", "bin/sh": "", "tmp/": "",
				"etc/ssl/certs/ca-certificates.crt": own,
			},
			changes: []string{"ENV PATH=/opt/tools HOME=/root MINE=$(HOME)", "USER nobody"},
			shell:   "/bin/sh", path: "/opt/tools:/home/coder/.local/bin:/opt/codehub",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := c.runtime(t)
			r.cfg.Authorities = a.PEM
			ref := c.push(t, test.files, test.changes...)
			id := workspace.ID(uuid.NewString())
			home := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageKubernetes, Claim: "home-1", Image: ref}
			check(t, r.CreateVolume(t.Context(), home, nil))
			check(t, r.OwnHome(t.Context(), runtime.OwnSpec{Workspace: id, VolumeClaim: "home-1", UID: 1500001, From: []uint32{0, 1000}}, nil))
			started, err := r.StartContainer(t.Context(), runtime.ContainerSpec{
				Workspace: id, UID: 1500001, Claim: "start-1", Image: ref, Storage: home.Storage, VolumeClaim: "home-1", Secret: "s", Env: map[string]string{"GIVEN": "$(PATH)\nof lines\n"},
			}, nil)
			check(t, err)
			if started.ImageDigest == "" {
				t.Errorf("container = %+v", started)
			}
			up, err := r.Upstream(t.Context(), id)
			check(t, err)
			got := run[whoami](t, up, agentPath, "whoami")
			if got.Name != "coder" || got.Group != "coder" || got.Home != "/home/coder" || got.Temp != "" {
				t.Errorf("the user is %+v", got)
			}
			got.trusting(t, a, test.files["etc/ssl/certs/ca-certificates.crt"])
			want := map[string]string{"HOME": "/home/coder", "USER": "coder", "LOGNAME": "coder", "SHELL": test.shell, "PATH": "/dev/shm/codehub/bin:" + test.path, "LANG": "C.UTF-8", "GIVEN": "$(PATH)\nof lines\n"}
			for name, value := range want {
				if got.Env[name] != value {
					t.Errorf("%s=%s, want %s", name, got.Env[name], value)
				}
			}
			if len(test.changes) > 0 && got.Env["MINE"] != "$(HOME)" {
				t.Errorf("a variable of the image: %q", got.Env["MINE"])
			}
		})
	}
}

// testSudo lets a user become root: on a node that has user namespaces, since the first one's
// container runtime has none.
func testSudo(t *testing.T, c *cluster) {
	r := c.runtime(t)
	a := authority.New(t)
	r.cfg.Authorities = a.PEM
	r.cfg.Sudo, r.cfg.Nodes = true, map[string]string{"kubernetes.io/hostname": "node2"}
	program, err := os.ReadFile(c.program)
	check(t, err)
	ref := c.push(t, map[string]string{"bin/sudo": string(program), "etc/passwd": "root:x:0:0::/root:/bin/sh\n", "bin/sh": ""})
	id := workspace.ID(uuid.NewString())
	home := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageKubernetes, Claim: "home-1", Image: ref}
	check(t, r.CreateVolume(t.Context(), home, nil))
	const uid = 20001
	check(t, r.OwnHome(t.Context(), runtime.OwnSpec{Workspace: id, VolumeClaim: "home-1", UID: uid, From: []uint32{0, 1000}}, nil))
	started, err := r.StartContainer(t.Context(), runtime.ContainerSpec{Workspace: id, UID: uid, Claim: "start-1", Image: ref, Storage: home.Storage, VolumeClaim: "home-1", Secret: "s"}, nil)
	check(t, err)
	up, err := r.Upstream(t.Context(), id)
	check(t, err)
	user := run[whoami](t, up, agentPath, "whoami")
	if user.Name != "coder" || user.UID != uid || user.Effective != uid || user.HostRoot == 0 || user.Capabilities != "0000000000000000" || user.Home != "/home/coder" {
		t.Errorf("the user is %+v", user)
	}
	root := run[whoami](t, up, "/bin/sudo", "whoami")
	if root.UID != uid || root.Effective != 0 || root.HostRoot == 0 || root.Users != "" {
		t.Errorf("root is %+v", root)
	}
	root.trusting(t, a, "")
	if files := (direct{c: c, r: r}).home(t, id); files[0].UID != uid {
		t.Errorf("the home belongs to %d", files[0].UID)
	}
	if err := r.RemoveContainer(t.Context(), started.ID, 0); err != nil {
		t.Error(err)
	}
}

// run runs a command by the agent and parses what it prints.
func run[T any](t *testing.T, up runtime.Upstream, args ...string) T {
	t.Helper()
	client := &agent.Client{Addr: up.Agent, Secret: up.Secret}
	p, err := client.Exec(t.Context(), agent.Command{Args: args})
	for errors.Is(err, agent.ErrUnreachable) && t.Context().Err() == nil { // it does not listen yet
		p, err = client.Exec(t.Context(), agent.Command{Args: args})
	}
	check(t, err)
	defer p.Close()
	var out, errs bytes.Buffer
	exit, err := p.Run(&out, &errs)
	var v T
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &v)
	}
	if err != nil || exit.Code != 0 {
		t.Fatalf("%q: %+v, %v; it printed %q and %q", args, exit, err, out.String(), errs.String())
	}
	return v
}

// push puts an image with files into the cluster's registry.
func (c *cluster) push(t *testing.T, files map[string]string, changes ...string) string {
	t.Helper()
	var tree bytes.Buffer
	w := tar.NewWriter(&tree)
	for name, content := range files {
		h := &tar.Header{Name: name, Mode: 0o4755, Size: int64(len(content))}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o1777
		}
		err := w.WriteHeader(h)
		if _, failed := w.Write([]byte(content)); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
	}
	check(t, w.Close())
	name := "any/" + uuid.NewString()
	args := []string{"import"}
	for _, change := range changes {
		args = append(args, "--change", change)
	}
	local := "codehub/kube-" + name[4:] + ":1"
	docker := func(input []byte, args ...string) []byte {
		t.Helper()
		cmd := exec.Command("docker", args...)
		cmd.Stdin = bytes.NewReader(input)
		var failed bytes.Buffer
		cmd.Stderr = &failed
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("docker %q: %v: %s", args, err, failed.String())
		}
		return out
	}
	docker(tree.Bytes(), append(args, "-", local)...)
	saved := docker(nil, "save", local)
	docker(nil, "image", "rm", local)
	ref, _ := c.registry.AddSaved(name, saved, "any")
	return c.registryHost + strings.TrimPrefix(ref, c.registry.Host())
}

// testLogins starts a workspace of an image for which the registry wants a login: the Secret
// of the namespace has it, for the nodes and for this server.
func testLogins(t *testing.T, c *cluster) {
	private := *c
	private.registry, private.registryHost = c.newRegistry(t)
	private.registry.SetLogin("ann", "hunter2")
	ref := private.remoteImage(t)
	secrets := c.Client.CoreV1().Secrets(namespace)
	login := fmt.Sprintf(`{"auths": {%q: {"username": "ann", "password": "hunter2"}}}`, private.registryHost)
	_, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: pullSecret}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(login)},
	}, metav1.CreateOptions{})
	check(t, err)
	r := private.runtime(t)
	spec := runtime.VolumeSpec{Workspace: workspace.ID(uuid.NewString()), Storage: workspace.StorageKubernetes, Claim: "home-1", Image: ref}
	var pull *runtime.PullError
	if err := r.CreateVolume(t.Context(), spec, nil); !errors.As(err, &pull) || pull.Message != fmt.Sprintf(runtime.MsgNodeLogin, private.registryHost) {
		t.Errorf("without a login: %v", err)
	}
	if _, err := r.Newest(t.Context(), ref, true); err == nil || !strings.Contains(err.Error(), "without a login") {
		t.Errorf("without a login: %v", err)
	}
	r.cfg.SecretNames = []string{pullSecret}
	if newest, err := r.Newest(t.Context(), ref, true); err != nil || newest.Digest == "" {
		t.Errorf("with a login: %+v, %v", newest, err)
	}
	if err := r.CreateVolume(t.Context(), spec, nil); err != nil {
		t.Error(err)
	}
	if len(slices.DeleteFunc(c.registry.Logins(), func(s string) bool { return s == "" })) > 0 {
		t.Error("another registry got the login")
	}
}
