package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/api"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/kubetest"
)

const clusterTemplate = `
repositories: [{url: %q}]
scripts:
  create: printf '%%s with %%s bytes\n' "$(cat hello)" "${#NPM_TOKEN}" >> ~/created
secrets: {required: [NPM_TOKEN]}
`

// projectOnCluster creates a workspace from a template with a private repository, a script, a secret
// and dotfiles. The server is killed once the Pod runs and waits for its setup, which the next one
// sends. Another Pod has the same, and runs nothing again that runs once. Nothing in the cluster
// and in the home has the values. It takes longer than 20 s, since a workspace starts twice while
// the other tests on the cluster run.
func projectOnCluster(t *testing.T, k *kubetest.Cluster, settings []string) {
	ctx, dir := t.Context(), scratch(t)
	value, token := "s3cret-"+rand.Text(), "t0ken-"+rand.Text()
	const files = `echo hello > hello && echo 'echo run >> ~/installed' > install.sh && echo '{"build": {"dockerfile": "Dockerfile"}, "features": {"./local": {}}}' > .devcontainer.json`
	host := "http://" + k.Forward(gitServer(t, files, onlyFor("octocat", token)))
	repo := host + "/api.git"
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), fmt.Appendf(nil, clusterTemplate, repo), 0o644); err != nil {
		t.Fatal(err)
	}
	s := startQuick(t, append(slices.Clip(settings), "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_TEMPLATES_DIR="+dir, "CODEHUB_SECRET_KEY_FILE="+secretKey(t))...)
	s.runtime = clusterState{k}
	_, err := s.api.ConnectGit(ctx, api.NewGitConnection{Host: host, Login: "octocat", Token: token})
	if err == nil {
		_, err = s.api.CreateSecret(ctx, "", api.CreateSecret{Name: "npm", Value: value, Env: "NPM_TOKEN", File: "~/.config/npm/token"})
	}
	if err == nil {
		_, err = s.api.SetDotfiles(ctx, api.Dotfiles{URL: repo})
	}
	if err == nil {
		_, err = s.api.SetGitIdentity(ctx, api.SetGitIdentity{Name: "Ann Lee", Email: "ann@example.com"})
	}
	if err != nil {
		t.Fatal(err)
	}

	pods := k.Client.CoreV1().Pods(clusterNamespace)
	id := s.create(api.CreateWorkspace{Name: "shop", Template: "shop"})
	pod := func(what string, ok func(corev1.Pod) bool) (found corev1.Pod) {
		t.Helper()
		harness.Eventually(t, what, func() bool {
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "codehub.dev/role=workspace,codehub.dev/workspace=" + id})
			if err != nil || len(list.Items) != 1 {
				return false
			}
			found = list.Items[0]
			return ok(found)
		})
		return found
	}
	pod("the Pod may run", func(p corev1.Pod) bool { return len(p.Spec.SchedulingGates) == 0 })
	if err := syscall.Kill(s.Pid(), syscall.SIGSTOP); err != nil { // before the Pod runs
		t.Fatal(err)
	}
	first := pod("the agent waits for its setup", func(p corev1.Pod) bool {
		status, err := agentIn(p).SetupStatus(ctx)
		return err == nil && p.Status.PodIP != "" && status.Waiting
	})
	s.Kill()
	<-s.Done()
	s.restart()
	s.awaitPhase(id, "RUNNING")
	s.expectNoError(id, "the setup")
	ends := func(want string) {
		t.Helper()
		var last api.Setup
		s.until("the setup ends as "+want, func() bool {
			var err error
			var got []string
			last, err = s.api.Setup(ctx, id)
			for _, st := range last.Steps {
				got = append(got, st.Kind+" "+st.State)
				if st.State == "failed" {
					t.Fatalf("%+v", last)
				}
			}
			return err == nil && strings.Join(got, ", ") == want
		})
	}
	look := `cat ~/created ~/installed project/api/hello; git config user.name
		printf '%s\n' "$NPM_TOKEN"; cat ~/.config/npm/token; echo; stat -Lc '%a %U' ~/.config/npm/token; stat -fLc %T ~/.config/npm/token
		git -C project/api fetch -q && { grep -rlF "$NPM_TOKEN" ~ /tmp; token=$(codehub git token ` + host + `) && grep -rlF "$token" ~ /tmp /dev/shm; } 2>/dev/null | wc -l`
	want := fmt.Sprintf("hello with %d bytes\nrun\nhello\nAnn Lee\n%s\n%s\n600 coder\ntmpfs\n0", len(value), value, value)
	ends("clone done, script done, dotfiles done")
	s.expectShell(id, look, want)
	if now := pod("the Pod runs", func(corev1.Pod) bool { return true }); now.UID != first.UID {
		t.Error("the start after the kill has made another Pod")
	}

	found := search{t, map[string]string{"the secret": value, "the token": token}}
	inCluster(found, k, id)
	found.below(filepath.Dir(s.homeFolder(id)), func(string, []byte) {})
	log, err := s.api.Logs(ctx, id, 1000, false)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	lines, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	found.in("the Pod's log", lines)
	found.in("the server's log", []byte(s.Log()))

	// Images are not built here.
	list, err := s.api.Devcontainers(ctx, id)
	if err != nil || len(list.Files) != 1 || len(list.Files[0].Ignored) != 2 || list.Files[0].Ignored[0].Property != "build" || list.Files[0].Ignored[1].Property != "features" {
		t.Errorf("%+v, %v", list, err)
	}

	grace := int64(1)
	if err := pods.Delete(ctx, first.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	pod("another Pod", func(p corev1.Pod) bool { return p.UID != first.UID })
	s.awaitPhase(id, "RUNNING")
	ends("clone skipped, script skipped, dotfiles skipped")
	s.expectShell(id, look, want)
	inCluster(found, k, id)
	s.discard(id)
	s.expectNothingLeft()
}

// inCluster looks through what the cluster has of all namespaces, among it the Pod of a workspace.
func inCluster(found search, k *kubetest.Cluster, id string) {
	found.Helper()
	core, all := k.Client.CoreV1(), metav1.ListOptions{}
	pods, err := core.Pods("").List(found.Context(), all)
	if err != nil {
		found.Fatal(err)
	}
	maps, err := core.ConfigMaps("").List(found.Context(), all)
	if err != nil {
		found.Fatal(err)
	}
	secrets, err := core.Secrets("").List(found.Context(), all)
	if err != nil {
		found.Fatal(err)
	}
	claims, err := core.PersistentVolumeClaims("").List(found.Context(), all)
	if err != nil {
		found.Fatal(err)
	}
	events, err := core.Events("").List(found.Context(), all)
	if err != nil {
		found.Fatal(err)
	}
	for _, s := range secrets.Items {
		for name, content := range s.Data {
			found.in("the key "+name+" of the Secret "+s.Name, content)
		}
	}
	for what, list := range map[string]any{"Pods": pods, "ConfigMaps": maps, "Secrets": secrets, "claims": claims, "events": events} {
		content, err := json.Marshal(list)
		if err != nil {
			found.Fatal(err)
		}
		found.in("the "+what, content)
		if what == "Pods" && (!bytes.Contains(content, []byte(id)) || !bytes.Contains(content, []byte(runtime.SetupEnv))) {
			found.Errorf("the Pod of the workspace is not in the list")
		}
	}
}

// agentIn returns a client of the agent in a workspace's Pod.
func agentIn(p corev1.Pod) *agent.Client {
	c := &agent.Client{Addr: net.JoinHostPort(p.Status.PodIP, strconv.Itoa(runtime.AgentPort))}
	for _, v := range p.Spec.Containers[0].Env {
		if v.Name == runtime.SecretEnv {
			c.Secret = v.Value
		}
	}
	return c
}
