package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/bus"
	"codehub/internal/postgres"
	"codehub/internal/running/frominside"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/gittest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// Programs in a running workspace clone, push and sign with its owner's key, which the server keeps.
// A new key, another name and a guest count without a restart.
func TestGitInWorkspaceUsesOwnersKey(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"git", "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%s is not installed: run scripts/setup.sh check", p)
		}
	}
	e := newEnv(t)
	w := e.workspace(e.ann, "alpha")
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, w.ID)
	agents := agenttest.New(t)
	a := agents.Start(w.ID)
	r := frominside.New(frominside.Config{
		Runtime: agents, Handler: Outer(e.cfg.Log, e.m, nil, New(e.cfg)), Git: e.cfg.GitIdentities.Of, Log: e.cfg.Log, Socket: filepath.Join(filepath.Dir(a.BusySocket), "client.sock"),
	})
	e.Hub.Observe(bus.Observer{Changed: func(_ string, id workspace.ID) { r.Changed(id) }, Gap: r.Gap})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- r.Run(ctx, func(context.Context) ([]postgres.RunningWorkspace, error) {
			return []postgres.RunningWorkspace{{ID: w.ID}}, nil
		})
	}()
	t.Cleanup(func() { end(); <-ended })
	run := func(line string) (string, int) {
		t.Helper()
		c := &agent.Client{Addr: a.Agent, Secret: a.Secret}
		p, err := c.Exec(t.Context(), agent.Command{Args: []string{"sh", "-c", line}, Env: []string{"LC_ALL=C", "GIT_SSH_COMMAND=ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=known"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		var out bytes.Buffer
		exit, err := p.Run(&out, &out)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), exit.Code
	}
	eventually := func(what, line, want string) {
		t.Helper()
		last := ""
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		harness.Eventually(t, what, func() bool {
			out, _ := run(line)
			last = out
			return strings.Contains(out, want)
		})
	}

	set := read[api.GitIdentity](t, e.want(http.StatusOK, "", "PUT", "/user/git-identity", `{"name":"Ann Lee","email":"ann@example.com","sign_commits":true}`, as(e.ann)))
	server := gittest.ServeSSH(t)
	url := "ssh://git@" + server.Addr + "/repo.git"
	eventually("the key is offered", "ssh-add -L", set.PublicKey)
	if out, code := run("git clone -q " + url + " refused"); code == 0 || !strings.Contains(out, "Permission denied (publickey)") {
		t.Errorf("an unknown key: %s", out)
	}
	server.Allow(set.PublicKey)
	if out, code := run("git clone -q " + url + " r && cd r && git commit -q --allow-empty -m one && git push -q origin HEAD && git log -1 --format='%an <%ae> %G?' origin/HEAD || git log -1 --format='%an <%ae> %G?'"); code != 0 || !strings.Contains(out, "Ann Lee <ann@example.com> G") {
		t.Errorf("code %d: %s", code, out)
	}

	next := read[api.GitIdentity](t, e.want(http.StatusCreated, "", "POST", "/user/git-identity/key", "", as(e.ann)))
	eventually("the new key is offered", "ssh-add -L", next.PublicKey)
	if out, code := run("git ls-remote " + url); code == 0 {
		t.Errorf("with the former key at the server: %s", out)
	}
	server.Allow(next.PublicKey)
	if out, code := run("git ls-remote " + url + " && cd r && git commit -q --allow-empty -m two && git log -1 --format=%G?"); code != 0 || !strings.HasSuffix(out, "G\n") {
		t.Errorf("code %d: %s", code, out)
	}

	// A guest who may use the workspace.
	e.want(http.StatusOK, "", "POST", "/workspaces/"+string(w.ID)+"/shares", `{"user":"eve","access":"use"}`, as(e.ann))
	eventually("the key is not offered", "ssh-add -L", "no identities")
	if out, code := run("cd r && git commit -q --allow-empty -m three && git log -1 --format='%an %G?'"); code != 0 || out != "Ann Lee N\n" {
		t.Errorf("code %d: %s", code, out)
	}
	if out, code := run("git ls-remote " + url); code == 0 {
		t.Errorf("with a guest: %s", out)
	}
	e.Exec(`DELETE FROM workspace_shares`)
	eventually("the key is offered again", "ssh-add -L", next.PublicKey)
	if _, err := os.Stat(filepath.Join(a.Home, ".ssh")); !os.IsNotExist(err) {
		t.Errorf("the home has a .ssh: %v", err)
	}
}

// Only a program in the workspace gets a signature, not its owner by a login.
func TestOnlyTheWorkspaceHasSignatures(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.workspace(e.ann, "alpha")
	g := read[api.GitIdentity](t, e.want(http.StatusCreated, "", "POST", "/user/git-identity/key", "", as(e.ann)))
	body := `{"public_key":"` + g.PublicKey + `","data":"` + base64.StdEncoding.EncodeToString([]byte("x")) + `"}`
	e.want(http.StatusForbidden, "forbidden", "POST", "/workspaces/"+string(w.ID)+"/git-signature", body, as(e.ann))
	for body, field := range map[string]string{`{"name":"a<b"}`: "name", `{"email":"ann"}`: "email"} {
		if a := e.want(http.StatusBadRequest, "invalid_request", "PUT", "/user/git-identity", body, as(e.ann)); !strings.Contains(a.body, `"field":"`+field+`"`) {
			t.Errorf("%s: %s", body, a.body)
		}
	}
}
