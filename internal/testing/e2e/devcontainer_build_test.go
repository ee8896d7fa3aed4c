package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness/authority"
)

// A workspace builds the image that its repository describes: a Dockerfile, and five Features of a
// registry in their order, with the server's proxy and the company's authorities. A build that
// fails, or is canceled, changes nothing. It takes 40 s, for seven images.
func TestDevcontainerBuild(t *testing.T) {
	t.Parallel()
	registry := dockertest.Distribution(t)
	push := func(name, metadata, script string) {
		dockertest.PushFeature(t, registry+"/features/"+name+":1", dockertest.Tar(t, map[string]string{
			"devcontainer-feature.json": fmt.Sprintf(`{"id": %q, "version": "1.0.0"%s}`, name, metadata), "install.sh": "#!/bin/sh\nset -e\necho " + name + " >> /etc/installed\n" + script,
		}))
	}
	dependsOn := fmt.Sprintf(`, "dependsOn": {%q: {}}`, registry+"/features/base:1")
	push("base", `, "containerEnv": {"BASE": "yes", "PATH": "/opt/base:${PATH}"}`, "mkdir -p /opt/base && printf '#!/bin/sh\necho tool\n' >/opt/base/tool && chmod 755 /opt/base/tool")
	push("first", dependsOn+`, "options": {"version": {"type": "string", "default": "0"}, "with-docs": {"type": "boolean", "default": true}}`, `echo "$VERSION $WITH_DOCS $_REMOTE_USER $(id -u)" > /etc/first`)
	push("second", dependsOn+fmt.Sprintf(`, "installsAfter": [%q]`, registry+"/features/third"), "")
	push("third", `, "onCreateCommand": "echo third >> ~/ran", "customizations": {"vscode": {"settings": {"editor.tabSize": 3, "editor.rulers": [80]}}}`, `su coder -c 'echo home > /home/coder/of-third'`)
	push("fourth", `, "mounts": ["source=a,target=/b,type=volume"], "privileged": true, "entrypoint": "/start"`, "")

	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DEVCONTAINER_BUILDS=1", "CODEHUB_PLAIN_REGISTRIES="+registry,
		"CODEHUB_CA_FILE="+authority.New(t).File(), "HTTPS_PROXY=http://proxy.test:3128")
	id := s.create(api.CreateWorkspace{Name: "api", Repositories: []api.Repository{{URL: "http://127.0.0.1:42119/api.git"}}})
	s.awaitPhase(id, "RUNNING")
	run := func(command string) string { return s.run(id, command) }
	build := func(want string) api.DevcontainerBuild {
		t.Helper()
		var b api.DevcontainerBuild
		s.until("the build is "+want, func() (is bool) {
			var err error
			if b, err = s.api.DevcontainerBuild(t.Context(), id); err == nil && b.EndedAt != nil && b.State != want {
				t.Fatalf("%s: %s\n%s", b.State, b.Error, b.Log)
			}
			return err == nil && b.State == want
		})
		return b
	}
	use := func() {
		t.Helper()
		if _, err := s.api.UseDevcontainer(t.Context(), id, api.UseDevcontainer{}); err != nil {
			t.Fatal(err)
		}
	}
	image := func() string {
		t.Helper()
		w, err := s.api.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return w.ImageRef
	}
	start := func() {
		t.Helper()
		s.setDesired(id, "STANDBY")
		s.awaitPhase(id, "STANDBY")
		s.setDesired(id, "RUNNING")
		s.awaitPhase(id, "RUNNING")
	}
	describes := func() {
		t.Helper()
		s.until("the repository describes its environment", func() bool {
			_, _ = s.api.RetrySetup(t.Context(), id)
			list, err := s.api.Devcontainers(t.Context(), id)
			return err == nil && len(list.Files) == 1
		})
	}
	s.until("the clone has failed", func() bool { // nothing listens there: the files come by hand
		last, err := s.api.Setup(t.Context(), id)
		return err == nil && last.Steps[0].State == "failed"
	})
	write := func(last string) {
		t.Helper()
		run(`mkdir -p project/api/.devcontainer && cd project/api && cat > .devcontainer/devcontainer.json <<'END'
{
	"build": {"dockerfile": "Dockerfile", "context": "..", "target": "dev", "args": {"WORD": "given"}},
	"features": {
		"` + registry + `/features/second:1": {},
		"` + registry + `/features/first:1": {"version": "7", "with-docs": false},
		"` + registry + `/features/third:1": "latest",
		"` + registry + `/features/fourth:1": {},
		"./local": {},
	},
	"onCreateCommand": "echo own >> ~/ran",
	"customizations": {"vscode": {"settings": {"editor.tabSize": 5}}},
}
END
mkdir -p .devcontainer/local && echo '{"id": "local", "version": "1"}' > .devcontainer/local/devcontainer-feature.json
printf '#!/bin/sh\necho local >> /etc/installed\n' > .devcontainer/local/install.sh
printf 'kept\n' > kept; printf 'left out\n' > out; printf 'out\n.devcontainer\n' > .dockerignore
cat > .devcontainer/Dockerfile <<'END'
FROM ` + env.slimImage + ` AS dev
ARG WORD
COPY . /srv/context
USER root
RUN echo "$WORD" > /srv/word && id -u >> /srv/word && echo "$https_proxy" >> /srv/word && grep -c BEGIN "$SSL_CERT_FILE" | grep -q ... && echo trusted >> /srv/word
` + last + `
FROM dev
RUN exit 9
END`)
	}
	write("RUN echo not this && exit 3")
	describes()
	list, err := s.api.Devcontainers(t.Context(), id)
	if err != nil || list.Files[0].Dockerfile != ".devcontainer/Dockerfile" || len(list.Files[0].Features) != 5 || len(list.Files[0].Ignored) != 0 || list.Build != nil {
		t.Fatalf("%+v, %v", list, err)
	}
	use()
	if b := build("failed"); !strings.Contains(b.Log, "not this") || !strings.Contains(b.Error, "3") || image() != env.slimImage {
		t.Errorf("%+v", b)
	}
	write("RUN sleep 100000")
	use()
	s.until("the build waits in its script", func() bool {
		b, err := s.api.DevcontainerBuild(t.Context(), id)
		return err == nil && strings.Contains(b.Step, "sleep 100000")
	})
	if _, err := s.api.UseDevcontainer(t.Context(), id, api.UseDevcontainer{}); err == nil || !strings.Contains(err.Error(), "Another image") {
		t.Errorf("a second build: %v", err)
	}
	if _, err := s.api.CancelDevcontainerBuild(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	build("canceled")

	write("")
	use()
	b := build("done")
	asked := map[string]string{}
	for _, i := range b.Ignored {
		asked[i.Property] = i.Reason
	}
	if len(asked) != 3 || asked["features.fourth.mounts"] != "mounts" || asked["features.fourth.privileged"] != "rights" || asked["features.fourth.entrypoint"] == "" {
		t.Errorf("ignored: %v", b.Ignored)
	}
	built := image()
	if !strings.HasPrefix(built, "codehub/devcontainer/") {
		t.Fatalf("the image is %s", built)
	}
	start()
	s.until("the scripts have run", func() bool {
		last, err := s.api.Setup(t.Context(), id)
		return err == nil && len(last.Steps) == 3 && !slices.ContainsFunc(last.Steps, func(s api.SetupStep) bool { return s.State == "waiting" || s.State == "running" })
	})
	if out := run("cat ran"); out != "third\nown\n" {
		last, err := s.api.Setup(t.Context(), id)
		t.Errorf("%q; %+v, %v", out, last, err)
	}
	out := run("cat /srv/word; echo $https_proxy $SSL_CERT_FILE; ls -A /srv/context; cat /etc/first; echo $BASE; tool; cat .local/share/code-server/Machine/settings.json")
	if !strings.HasPrefix(out, "given\n0\nhttp://proxy.test:3128\ntrusted\n/opt/codehub-trust/ca-certificates.crt\n.codehub-authorities.crt\nkept\n7 false coder 0\nyes\ntool\n") || !strings.Contains(out, `"editor.tabSize": 5`) || !strings.Contains(out, "editor.rulers") {
		t.Errorf("%s", out)
	}
	at := map[string]int{}
	for i, name := range strings.Fields(run("cat /etc/installed")) {
		at[name] = i
	}
	if len(at) != 6 || at["base"] > at["first"] || at["base"] > at["second"] || at["third"] > at["second"] {
		t.Errorf("installed: %v", at)
	}

	// The same again is there already.
	if _, err := s.api.StopDevcontainer(t.Context(), id); err != nil || image() != env.slimImage {
		t.Fatalf("%v, %s", err, image())
	}
	use()
	if b := build("done"); !strings.Contains(b.Log, "already built") || image() != built {
		t.Errorf("%+v", b)
	}
	// Others may not use it.
	if _, err := s.as("other").api.Create(t.Context(), api.CreateWorkspace{Name: "stolen", ImageRef: built}); err == nil || !strings.Contains(err.Error(), "is not allowed") {
		t.Errorf("another user: %v", err)
	}
}
