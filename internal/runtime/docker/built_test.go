package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	buildtypes "github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/build"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/wall"
	"codehub/internal/runtime/registry"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/devcontainer/recipe"
)

// building is a build with its log.
type building struct {
	*Runtime
	t    *testing.T
	spec build.Spec

	mu    sync.Mutex
	lines []string
}

func newBuild(t *testing.T, r *Runtime, dockerfile string, files map[string]string) *building {
	return &building{t: t, Runtime: r, spec: build.Spec{
		Name: "codehub/devcontainer/" + uuid.NewString() + ":1", Workspace: workspace.ID(uuid.NewString()), Owner: uuid.NewString(),
		Dockerfile: "FROM " + harness.SlimImage() + "\nUSER root\n" + dockerfile,
		Context:    []io.Reader{bytes.NewReader(dockertest.Tar(t, files))},
		Size:       workspace.Size{Memory: 256 << 20, NanoCPUs: 5e8},
	}}
}

// context replaces the build context.
func (b *building) context(r io.Reader) { b.spec.Context = []io.Reader{r} }

func (b *building) run(ctx context.Context) error {
	return b.Builder().Build(ctx, b.spec, func(line string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lines = append(b.lines, line)
	})
}

// shows reports whether the log has a line.
func (b *building) shows(line string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.lines, line)
}

// read returns a file of the image.
func (b *building) read(name string) string {
	b.t.Helper()
	c, err := b.engine.API.ContainerCreate(b.t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: b.spec.Name, Labels: b.engine.Labels("test", "", "")}, HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	check(b.t, err)
	defer func() { check(b.t, b.engine.Discard(context.Background(), c.ID)) }()
	res, err := b.engine.API.CopyFromContainer(b.t.Context(), c.ID, client.CopyFromContainerOptions{SourcePath: name})
	check(b.t, err)
	defer res.Content.Close()
	return dockertest.FileIn(b.t, res.Content, filepath.Base(name))
}

// containersOfBuilds lists those of builds.
func containersOfBuilds(t *testing.T, r *Runtime) []container.Summary {
	t.Helper()
	list, err := r.engine.API.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: r.engine.Filter(engine.RoleBuilt)})
	check(t, err)
	return list.Items
}

func TestBuildImage(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.Pids = 77 })
	service := listenIn(t, "", "0.0.0.0:0")             // represents any service on the host
	_, err := r.builder.Network.Checked(t.Context(), 0) // its bridge is an address of the host
	check(t, err)
	var reach strings.Builder
	for _, addr := range hostAddresses(t, r.engine.Names.BuildBridge) {
		fmt.Fprintf(&reach, "RUN if timeout 2 bash -c ': </dev/tcp/%s/%s' 2>/dev/null; then echo reached %[1]s; fi\n", addr, service)
	}
	b := newBuild(t, r, `
ARG WHO=nobody
LABEL codehub.role=workspace codehub.workspace=1
COPY a \
   # a comment
   sub/b /copied/
RUN printf '\033[31m%s\033[0m\n' "hello $WHO" && echo "$WHO" > /who
RUN echo "memory $(cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null)"
RUN echo "quota $(cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null)"
RUN for i in $(seq 100); do grep -qs 77 /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max && echo "pids 77" && break; sleep 0.05; done
`+reach.String()+`
COPY . /all
FROM scratch
COPY never /
`, map[string]string{"a": "1", "sub/b": "2", ".dockerignore": "a\n"})
	b.spec.Dockerfile = strings.Replace(b.spec.Dockerfile, harness.SlimImage(), harness.SlimImage()+" AS dev", 1)
	b.spec.Target, b.spec.Args = "dev", map[string]string{"WHO": "ann"}
	check(t, b.run(t.Context()))
	for _, line := range []string{"hello ann", "memory 268435456", "quota 50000", "pids 77"} {
		if !b.shows(line) {
			t.Errorf("the log has no line %q", line)
		}
	}
	for _, line := range b.lines {
		if strings.HasPrefix(line, "reached ") || strings.Contains(line, "codehub.installation") || strings.Contains(line, "--->") {
			t.Errorf("log: %s", line)
		}
	}
	if b.read("/who") != "ann\n" || b.read("/copied/b") != "2" || b.read("/all/a") != "1" {
		t.Error("the image has not what was built")
	}
	id, err := b.Builder().Has(t.Context(), b.spec.Name)
	check(t, err)
	list, err := b.Builder().Built(t.Context())
	at := slices.IndexFunc(list, func(i build.Image) bool { return slices.Contains(i.Names, b.spec.Name) })
	if err != nil || at < 0 || list[at].ID != id || list[at].Owner != b.spec.Owner || time.Since(list[at].Created) > time.Hour {
		t.Errorf("built: %+v (%v)", list, err)
	}
	if left := containersOfBuilds(t, r); len(left) > 0 {
		t.Errorf("%d containers are left", len(left))
	}
	if containers, err := r.Containers(t.Context()); err != nil || len(containers) > 0 {
		t.Errorf("containers of workspaces: %+v, %v", containers, err)
	}

	// An image that is used is not removed.
	used, err := r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: b.spec.Name, Labels: r.engine.Labels("test", "", "")}, HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	check(t, err)
	check(t, b.Builder().RemoveBuilt(t.Context(), b.spec.Name))
	if still, err := b.Builder().Has(t.Context(), b.spec.Name); err != nil || still != id {
		t.Errorf("a used image is %q now (%v)", still, err)
	}
	check(t, r.engine.Discard(t.Context(), used.ID))
	for range 2 {
		check(t, b.Builder().RemoveBuilt(t.Context(), b.spec.Name))
	}
	if gone, err := b.Builder().Has(t.Context(), b.spec.Name); err != nil || gone != "" {
		t.Errorf("a removed image is %q (%v)", gone, err)
	}
}

// The wall is what keeps builds from the host.
func TestBuildWithoutWallReachesHost(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	r.builder.Network.Apply = func(s wall.Spec) error { return wall.Remove(s.Table) }
	service := listenIn(t, "", "0.0.0.0:0")
	net, err := r.builder.Network.Checked(t.Context(), 0)
	check(t, err)
	b := newBuild(t, r, fmt.Sprintf("RUN timeout 20 bash -c ': </dev/tcp/%s/%s' && echo reached\n", net.Subnet.Addr().Next(), service), nil)
	check(t, b.run(t.Context()))
	if !b.shows("reached") {
		t.Errorf("without a wall: %q", b.lines)
	}
}

// HTTP_PROXY does not count when Docker looks for a layer, so a user could make others use what
// their own proxy has sent.
func TestBuildsShareLayersOfOwner(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	var made []string
	owner := uuid.NewString()
	for _, by := range []string{owner, owner, uuid.NewString()} {
		b := newBuild(t, r, "RUN cat /proc/sys/kernel/random/uuid > /made\n", nil)
		b.spec.Owner, b.spec.Args = by, map[string]string{"HTTP_PROXY": "http://" + uuid.NewString()}
		check(t, b.run(t.Context()))
		made = append(made, b.read("/made"))
	}
	if made[0] != made[1] || made[0] == made[2] {
		t.Errorf("layers of the same owner twice, and of another one: %q", made)
	}
}

func TestCancelEndsBuild(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	b := newBuild(t, r, "RUN echo begun; sleep 100000\n", nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.run(ctx) }()
	harness.Eventually(t, "the command runs", func() bool { return b.shows("begun") })
	if len(containersOfBuilds(t, r)) != 1 {
		t.Error("its container has no label of builds")
	}
	why := errors.New("the user has canceled it")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("canceled: %v", err)
	}
	harness.Eventually(t, "the container is gone", func() bool { return len(containersOfBuilds(t, r)) == 0 })
	if id, err := b.Builder().Has(t.Context(), b.spec.Name); err != nil || id != "" {
		t.Errorf("the image is %q (%v)", id, err)
	}
	// What it has left is found by its label.
	harness.Eventually(t, "nothing is left", func() bool {
		list, err := b.Builder().Built(t.Context())
		check(t, err)
		for _, i := range list {
			check(t, b.Builder().RemoveBuilt(t.Context(), i.ID))
		}
		return len(list) == 0
	})
}

func TestFailedBuilds(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	for name, test := range map[string]struct {
		change func(*building)
		says   string
	}{
		"command":        {func(b *building) { b.spec.Dockerfile += "RUN exit 3\n" }, `The command "exit 3" ended with code 3.`},
		"out of memory":  {func(b *building) { b.spec.Dockerfile += "RUN tail /dev/zero\n" }, "probably because it needs more memory"},
		"missing file":   {func(b *building) { b.spec.Dockerfile += "COPY none /\n" }, "none"},
		"missing target": {func(b *building) { b.spec.Target = "none" }, "none"},
		"missing base":   {func(b *building) { b.spec.Dockerfile = "FROM 127.0.0.1:9/none:1" }, "127.0.0.1:9"},
		"no tar":         {func(b *building) { b.context(strings.NewReader(strings.Repeat("no tar", 1000))) }, "not a complete tar"},
		"half a tar": {func(b *building) {
			b.context(io.LimitReader(bytes.NewReader(dockertest.Tar(t, map[string]string{"a": strings.Repeat("a", 1000)})), 700))
		}, "not a complete tar"},
	} {
		b := newBuild(t, r, "", nil)
		test.change(b)
		err := b.run(t.Context())
		var failed *build.Failed
		if err == nil || !strings.Contains(err.Error(), test.says) || errors.Is(err, runtime.ErrUnreachable) ||
			name != "missing base" && (!errors.As(err, &failed) || !strings.HasSuffix(err.Error(), ".")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if state := r.Breaker().State(); state.Failures > 0 {
		t.Errorf("failed builds count as failures of Docker: %+v", state)
	}
}

func TestBuildWithoutDocker(t *testing.T) {
	t.Parallel()
	r := newOffline(t, nil)
	b := newBuild(t, r, "", nil)
	if err := b.run(t.Context()); !errors.Is(err, runtime.ErrUnreachable) {
		t.Error(err)
	}
	b.spec.Dockerfile = "FROM scratch"
	if err := b.run(t.Context()); !errors.Is(err, runtime.ErrUnreachable) {
		t.Error(err)
	}
}

// A base image with ONBUILD could make Docker download what only its host reaches.
func TestBuildRefusesOnBuild(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	plain := importImage(t, r, nil, dockertest.Tar(t, map[string]string{"a": ""}))
	triggers := importImage(t, r, []string{"ONBUILD ADD http://127.0.0.1/ /"}, dockertest.Tar(t, map[string]string{"b": ""}))
	b := newBuild(t, r, "", nil)
	b.spec.Dockerfile = "FROM " + triggers + "\n"
	if err := b.run(t.Context()); err == nil || !strings.Contains(err.Error(), "ONBUILD") {
		t.Errorf("a base with ONBUILD: %v", err)
	}
	b.spec.Dockerfile = "FROM " + plain + "\n"
	b.context(readerFunc(func([]byte) (int, error) { // the images have been checked
		must(t)(r.engine.API.ImageTag(t.Context(), client.ImageTagOptions{Source: triggers, Target: plain}))
		return 0, io.EOF
	}))
	if err := b.run(t.Context()); err == nil || !strings.Contains(err.Error(), "ONBUILD") {
		t.Errorf("a name that is moved to it: %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Docker takes the images that codehub has checked, from the Dockerfile as it is built, and from the
// one in the repository, unless versions of Docker differ.
func TestDockerTakesCheckedImages(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	a, b := importImage(t, r, nil, dockertest.Tar(t, map[string]string{"a": ""})), importImage(t, r, nil, dockertest.Tar(t, map[string]string{"b": ""}))
	names := strings.NewReplacer("@a", a, "@b", b)
	for name, test := range map[string]struct {
		file, args string
		from       string // images of FROM
		images     string
		differs    bool
	}{
		"lower case":            {" \tfrom\t @a  As   X\nfrom x", "", "@a @a", "@a", false},
		"CRLF":                  {"\ufeff# syntax=none\r\n\r\nFROM \\\r\n# FROM @b\r\n\r\n  @a\r\nCMD x\r\n", "", "@a", "@a", false},
		"comments":              {"# escape=\\\nFROM \\\n  # c \\\n\n @a \\\n AS \\\n# d\nx\nFROM X", "", "@a @a", "@a", false},
		"hidden FROM":           {"FROM @a\nCMD x \\ \t\nFROM @b", "", "@a", "@a", false},
		"no comment":            {"FROM @a\nCMD x # \\ y\nFROM @b", "", "@a @b", "@a @b", false},
		"no here-document":      {"FROM @a\nCMD <<EOF\nFROM @b", "", "@a @b", "@a @b", false},
		"variables":             {"ARG I=x\nARG J=\"@a\"\nFROM $J\nFROM ${K:-@b}\nFROM ${I:+@a}", "", "@a @b @a", "@a @b", false},
		"argument":              {"ARG I=@a\nARG J\nFROM $I\nFROM ${J}", "I=@b J=@a", "@b @a", "@b @a", false},
		"variable of a stage":   {"ARG I=@a\nFROM $I\nARG I=@b\nFROM $I", "", "@a @a", "@a", false},
		"variables of one line": {"ARG I=@a J=$I\nFROM $J", "", "@a", "@a", true},
		"proxy":                 {"FROM @a${HTTP_PROXY:+/x}", "HTTP_PROXY=x", "@a", "@a", true},
		"stages":                {"FROM @a AS stage\nFROM STAGE\nCOPY --from=Stage /a /c\nCOPY --chown=1 --from=0 /a /d\nCOPY --from=@b /b /e", "", "@a @a", "@a @b", false},
		"platform":              {"FROM --platform=linux/" + goruntime.GOARCH + " @a AS x", "", "@a", "@a", false},
		"JSON":                  {"FROM @a\nCMD [\"FROM\", \"@b\"]\nCOPY [\"file\", \"/--from=@b\"]", "", "@a", "@a", false},
		"Unicode blank":         {"FROM @a\nCOPY \u00a0--from=@b /b /", "", "@a", "@a @b", true},
	} {
		args := map[string]string{}
		for arg := range strings.FieldsSeq(names.Replace(test.args)) {
			key, value, _ := strings.Cut(arg, "=")
			args[key] = value
		}
		written := names.Replace(test.file)
		file, err := recipe.Read(written, args)
		if err != nil || strings.Join(file.Images, " ") != names.Replace(test.images) {
			t.Errorf("%s: %+v, %v", name, file, err)
			continue
		}
		if got := fromImages(t, r, file.Text(""), args); got != names.Replace(test.from) {
			t.Errorf("%s: Docker takes %s", name, got)
		}
		if got := fromImages(t, r, written, args); (got != names.Replace(test.from)) != test.differs {
			t.Errorf("%s, as written: Docker takes %s", name, got)
		}
	}
}

// fromImages returns the images that Docker's steps FROM take, or the error of the build.
func fromImages(t *testing.T, r *Runtime, dockerfile string, args map[string]string) string {
	t.Helper()
	opts := client.ImageBuildOptions{Version: buildtypes.BuilderV1, Remove: true, ForceRemove: true, BuildArgs: map[string]*string{}}
	for name, value := range args {
		opts.BuildArgs[name] = &value
	}
	res, err := r.engine.API.ImageBuild(t.Context(), bytes.NewReader(dockertest.Tar(t, map[string]string{"Dockerfile": dockerfile, "file": ""})), opts)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	var log strings.Builder
	for dec := json.NewDecoder(res.Body); ; {
		var m jsonstream.Message
		if err := dec.Decode(&m); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if m.Error != nil {
			return m.Error.Message
		}
		log.WriteString(m.Stream)
	}
	var out []string
	for _, m := range fromStep.FindAllStringSubmatch(log.String(), -1) {
		info, err := r.engine.API.ImageInspect(t.Context(), m[1])
		check(t, err)
		out = append(out, strings.Join(info.RepoTags, ","))
	}
	return strings.Join(out, " ")
}

var fromStep = regexp.MustCompile(`(?is)Step \d+/\d+ : FROM\s.*?\n ---> ([0-9a-f]+)\n`)

// Five Features of a registry are installed in their order.
func TestBuildWithFeatures(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	host := dockertest.Distribution(t)
	files := map[string]string{}
	var dockerfile strings.Builder
	for i := range 5 {
		ref := fmt.Sprintf("%s/features/f%d:1", host, i)
		pushed := dockertest.PushFeature(t, ref, dockertest.Tar(t, map[string]string{
			"install.sh": fmt.Sprintf("#!/bin/sh\necho \"feature %d $VERSION $(ls)\" | tr '\\n' ' ' >> /installed\n", i), "devcontainer-feature.json": "{}",
		}))
		digest, archive, err := (&registry.Client{}).Feature(t.Context(), ref, registry.Login{})
		if err != nil || digest != pushed {
			t.Fatalf("%s: %s, %v", ref, digest, err)
		}
		files[fmt.Sprintf("f%d.tar", i)] = string(archive)
		fmt.Fprintf(&dockerfile, "ADD f%d.tar /tmp/f%[1]d/\nRUN cd /tmp/f%[1]d && VERSION=%[1]d.0 ./install.sh && rm -r /tmp/f%[1]d\n", i)
	}
	b := newBuild(t, r, dockerfile.String(), files)
	check(t, b.run(t.Context()))
	want := ""
	for i := range 5 {
		want += fmt.Sprintf("feature %d %[1]d.0 devcontainer-feature.json install.sh ", i)
	}
	if got := b.read("/installed"); got != want {
		t.Errorf("installed %q, want %q", got, want)
	}
}
