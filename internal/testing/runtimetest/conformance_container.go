package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

func containerTests() map[string]func(*suite) {
	return map[string]func(*suite){
		"container/started and listed": func(s *suite) {
			s.create()
			c := s.start()
			listed := s.container()
			want := runtime.Container{
				ID: c.ID, Workspace: s.id, Claim: "start-1", Image: c.Image, State: runtime.ContainerRunning,
				Detail: listed.Detail, Addr: c.Addr, ImageID: c.ImageID, ImageDigest: c.ImageDigest, ImageGeneration: 1, Size: workspace.DefaultSize,
			}
			if diff := cmp.Diff(want, listed); diff != "" {
				s.Fatalf("container as listed (-want +got):\n%s", diff)
			}
			if c.ID == "" || c.Image == "" || c.ImageID == "" || c.Addr == "" || listed.Detail == "" || c.State != runtime.ContainerRunning {
				s.Fatalf("container = %+v", c)
			}
			s.answers(c)
			s.answers(listed)
		},
		"container/started twice": func(s *suite) {
			s.create()
			c, again := s.start(), s.start()
			if c.ID != again.ID || again.State != runtime.ContainerRunning || again.Addr != c.Addr {
				s.Fatalf("second start = %+v, want %+v", again, c)
			}
		},
		"container/created but not started is started": func(s *suite) {
			s.create()
			s.Containers.HalfStart(s.T, s.containerSpec())
			made := s.container()
			if made.State != runtime.ContainerCreated || made.Addr != "" {
				s.Fatalf("container = %+v, want one that was made", made)
			}
			if _, err := s.Runtime.Upstream(s.ctx, s.id); err == nil {
				s.Fatal("a container that does not run has an upstream")
			}
			if c := s.start(); c.ID != made.ID || c.State != runtime.ContainerRunning {
				s.Fatalf("started = %+v, want %s", c, made.ID)
			}
			s.answers(s.container())
		},
		"container/environment": func(s *suite) {
			s.create()
			spec := s.containerSpec()
			spec.Hostname, spec.TimeZone, spec.EnvDigest = "demo-2", "Asia/Seoul", "digest"
			spec.Size = workspace.Size{Name: "small", NanoCPUs: 5e8, Memory: 256 << 20}
			spec.Env = map[string]string{
				"GREETING": "hello = world", "EMPTY": "",
				"DOUBLE": "a$$b", "TRIPLE": "$$$", "REFERENCE": "$(GREETING)", "ESCAPED": "$$(GREETING)", "BRACES": "${GREETING}", "TRAILING": "cost$", "HASH": "$2y$10$abc",
			}
			c, err := s.Runtime.StartContainer(s.ctx, spec, nil)
			s.ok("StartContainer", err)
			if listed := s.container(); c.Size != "small" || listed.Size != "small" {
				s.Errorf("size %q, listed %q", c.Size, listed.Size)
			}
			if listed := s.container(); c.EnvDigest != "digest" || listed.EnvDigest != "digest" {
				s.Errorf("digest %q, listed %q", c.EnvDigest, listed.EnvDigest)
			}
			host, env := s.Containers.Environment(s.T, s.id)
			empty, set := env["EMPTY"]
			if host != "demo-2" || env["GREETING"] != "hello = world" || empty != "" || !set || env["TZ"] != "Asia/Seoul" || env[runtime.SecretEnv] != spec.Secret {
				s.Errorf("%s: %q", host, env)
			}
			for name, value := range spec.Env {
				if env[name] != value {
					s.Errorf("%s=%q, want %q", name, env[name], value)
				}
			}
		},
		"container/environment with a time zone of its own": func(s *suite) {
			s.create()
			spec := s.containerSpec()
			spec.TimeZone, spec.Env = "Asia/Seoul", map[string]string{"TZ": "Europe/Berlin"}
			_, err := s.Runtime.StartContainer(s.ctx, spec, nil)
			s.ok("StartContainer", err)
			if _, env := s.Containers.Environment(s.T, s.id); env["TZ"] != "Europe/Berlin" {
				s.Errorf("%q", env)
			}
		},
		"container/another claim conflicts": func(s *suite) {
			s.create()
			spec := s.containerSpec()
			spec.Claim = "start-2"
			s.Containers.HalfStart(s.T, s.containerSpec())
			_, err := s.Runtime.StartContainer(s.ctx, spec, nil)
			s.is("StartContainer", err, runtime.ErrConflict)
			c := s.start()
			_, err = s.Runtime.StartContainer(s.ctx, spec, nil)
			s.is("StartContainer", err, runtime.ErrConflict)
			if got := s.container(); got.ID != c.ID || got.State != runtime.ContainerRunning {
				s.Fatalf("container = %+v, want %s running", got, c.ID)
			}
		},
		"container/exited one conflicts": func(s *suite) {
			s.create()
			s.answers(s.start())
			s.Containers.End(s.T, s.id)
			c := s.container()
			if c.State != runtime.ContainerExited || c.Addr != "" || c.Detail == "" {
				s.Fatalf("container = %+v, want an exited one", c)
			}
			_, err := s.Runtime.StartContainer(s.ctx, s.containerSpec(), nil)
			s.is("StartContainer", err, runtime.ErrConflict)
			_, err = s.Runtime.Upstream(s.ctx, s.id)
			s.is("Upstream", err, runtime.ErrNotFound)
			if err := s.Runtime.Logs(s.ctx, s.id, 0, false, io.Discard); err != nil {
				s.Fatalf("Logs of an exited container: %v", err)
			}
			s.restart(c)
		},
		"container/missing volume": func(s *suite) {
			s.tidy()
			for range 2 {
				_, err := s.Runtime.StartContainer(s.ctx, s.containerSpec(), nil)
				s.is("StartContainer", err, runtime.ErrVolumeMismatch)
				s.nothingRemains()
			}
		},
		"container/volume of another home": func(s *suite) {
			s.create()
			spec := s.containerSpec()
			spec.VolumeClaim = "home-2"
			_, err := s.Runtime.StartContainer(s.ctx, spec, nil)
			s.is("StartContainer", err, runtime.ErrVolumeMismatch)
			s.noContainer()
			s.wantVolume("home-1", true)
			s.wantHome(s.Homes.Seed)
		},
		"container/volume replaced after creation": func(s *suite) {
			s.create()
			s.Containers.HalfStart(s.T, s.containerSpec())
			spec := s.containerSpec()
			spec.VolumeClaim = "home-2"
			_, err := s.Runtime.StartContainer(s.ctx, spec, nil)
			s.is("StartContainer", err, runtime.ErrVolumeMismatch)
			if c, ok := s.find(s.ctx); ok && c.State != runtime.ContainerCreated {
				s.Fatalf("container = %+v", c)
			}
		},
		"container/removed twice, also after its successor started": func(s *suite) {
			s.create()
			first := s.start()
			second := s.restart(first)
			if second.ID == first.ID {
				s.Fatal("two containers with one id")
			}
			for range 2 {
				s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, first.ID, time.Second))
			}
			if got := s.container(); got.ID != second.ID {
				s.Fatalf("container = %+v, want %s", got, second.ID)
			}
			// A name is not an ID: another container may have it by now.
			_ = s.Runtime.RemoveContainer(s.ctx, s.id.ContainerName(), 0)
			_ = s.Runtime.RemoveContainer(s.ctx, s.id.DockerName(), 0)
			_ = s.Runtime.RemoveContainer(s.ctx, second.ID[:12], 0)
			if got := s.container(); got.ID != second.ID || got.State != runtime.ContainerRunning {
				s.Fatalf("container = %+v, want %s running", got, second.ID)
			}
		},
		"container/removed by hand": func(s *suite) {
			s.create()
			c := s.start()
			s.write("kept", "by hand")
			s.Containers.Take(s.T, s.id)
			s.noContainer()
			_, err := s.Runtime.Upstream(s.ctx, s.id)
			s.is("Upstream", err, runtime.ErrNotFound)
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))
			s.restart(c)
			s.wantHome(s.seedWith("kept", "by hand"))
		},
		"container/the home outlives it": func(s *suite) {
			s.create()
			s.settle()
			c := s.start()
			s.write("kept", "for the next")
			c = s.restart(c)
			s.answers(c)
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, time.Second))
			s.wantHome(s.seedWith("kept", "for the next"))
		},
		"container/removed by force without grace": func(s *suite) {
			s.create()
			c := s.start()
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, 0))
			s.noContainer()
			if err := s.Runtime.Probe(s.ctx, c); err == nil {
				s.Fatal("a removed container answers")
			}
		},
		"upstream/the agent requires the secret": func(s *suite) {
			s.create()
			s.start()
			up, err := s.Runtime.Upstream(s.ctx, s.id)
			s.ok("Upstream", err)
			hello, err := s.hello(up.Agent, up.Secret)
			s.ok("the agent's hello", err)
			if hello.Version != agent.Version {
				s.Errorf("the agent speaks version %d, want %d", hello.Version, agent.Version)
			}
			for _, secret := range []string{"wrong", up.Secret + "0", up.Secret[1:]} {
				if _, err := s.hello(up.Agent, secret); !errors.Is(err, agent.ErrRefused) {
					s.Errorf("hello with another secret: %v", err)
				}
			}
		},
		"upstream/address, secret and ID": func(s *suite) {
			_, err := s.Runtime.Upstream(s.ctx, s.id)
			s.is("Upstream without a container", err, runtime.ErrNotFound)
			s.create()
			spec := s.containerSpec()
			c, err := s.Runtime.StartContainer(s.ctx, spec, nil)
			s.ok("StartContainer", err)
			up, err := s.Runtime.Upstream(s.ctx, s.id)
			s.ok("Upstream", err)
			if diff := cmp.Diff(runtime.Upstream{ContainerID: c.ID, Addr: c.Addr, Agent: up.Agent, Secret: spec.Secret}, up); diff != "" {
				s.Fatalf("upstream (-want +got):\n%s", diff)
			}
			if up.Agent == "" || up.Agent == up.Addr {
				s.Fatalf("the agent's address is %q, the IDE's %q", up.Agent, up.Addr)
			}
			next := s.restart(c)
			again, err := s.Runtime.Upstream(s.ctx, s.id)
			s.ok("Upstream", err)
			if again.ContainerID != next.ID || again.Addr == up.Addr || again.Secret == up.Secret {
				s.Fatalf("upstream = %+v after %+v: an address or a secret is used again", again, up)
			}
		},
		"logs/container output": func(s *suite) {
			s.is("Logs", s.Runtime.Logs(s.ctx, s.id, 0, false, io.Discard), runtime.ErrNotFound)
			s.create()
			s.answers(s.start())
			s.Containers.End(s.T, s.id)
			var all, last bytes.Buffer
			s.ok("Logs", s.Runtime.Logs(s.ctx, s.id, 0, false, &all))
			s.ok("Logs", s.Runtime.Logs(s.ctx, s.id, 1, false, &last))
			lines := strings.SplitAfter(strings.TrimSuffix(all.String(), "\n"), "\n")
			if len(lines) < 2 || strings.TrimSuffix(last.String(), "\n") != lines[len(lines)-1] {
				s.Fatalf("all = %q, last = %q", all.String(), last.String())
			}
			if strings.ContainsAny(all.String(), "\x00\x01\x02") {
				s.Fatalf("the streams' headers are in %q", all.String())
			}
		},
		"logs/followed until the container ends": func(s *suite) {
			s.create()
			c := s.start()
			first := make(chan struct{})
			done := make(chan error, 1)
			w := &firstWrite{first: first}
			go func() { done <- s.Runtime.Logs(s.ctx, s.id, 0, true, w) }()
			select {
			case <-first:
			case err := <-done:
				s.Fatalf("following ended: %v", err)
			}
			s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, time.Second))
			s.ok("Logs", <-done)
		},
		"logs/following is cancelled": func(s *suite) {
			s.create()
			s.start()
			ctx, cancel := context.WithCancel(s.ctx)
			w := &firstWrite{first: make(chan struct{})}
			done := make(chan error, 1)
			go func() { done <- s.Runtime.Logs(ctx, s.id, 0, true, w) }()
			select {
			case <-w.first:
			case err := <-done:
				s.Fatalf("following ended: %v", err)
			}
			cancel()
			s.ok("Logs", <-done)
		},
	}
}

// firstWrite signals the first write.
type firstWrite struct {
	first chan struct{}
	seen  bool
}

func (w *firstWrite) Write(p []byte) (int, error) {
	if !w.seen {
		w.seen = true
		close(w.first)
	}
	return len(p), nil
}
