package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/workspace"
)

// lineup creates a workspace with the test image and starts nginx and Caddy in front of it. It
// returns codehub, nginx and Caddy, and what ends the latter.
func (b *bench) lineup(ctx context.Context) (all []*proxied, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	id, err := b.api.create(ctx, "bench-proxy", b.small)
	if err != nil {
		return nil, stop, err
	}
	direct, err := b.bare.reach(ctx, id)
	if err != nil {
		return nil, stop, err
	}
	user, err := logIn(ctx, b.server, "admin", proc.AdminPassword)
	if err != nil {
		return nil, stop, err
	}
	ours, err := user.open(ctx, id)
	if err != nil {
		return nil, stop, err
	}
	all = []*proxied{ours}
	for name, command := range map[string]func(ctx context.Context, dir, listen, upstream string) (*exec.Cmd, error){"nginx": nginx, "Caddy": caddy} {
		dir, err := os.MkdirTemp("", "codehub-bench-rival-")
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil { // nginx's workers run as another user
			return nil, stop, err
		}
		listen, err := proc.FreeAddress()
		if err != nil {
			return nil, stop, err
		}
		cmd, err := command(ctx, dir, listen, direct.address)
		if err != nil {
			return nil, stop, err
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		// Its own process group, because nginx leaves its workers behind.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, stop, err
		}
		end := func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
		if err := awaitHealth(ctx, "http://"+listen+"/healthz"); err != nil {
			end()
			return nil, stop, fmt.Errorf("%s: %w: %s", name, err, out.Bytes())
		}
		stops = append(stops, end)
		all = append(all, &proxied{name: name, address: listen, host: listen, headers: direct.headers})
	}
	slices.SortStableFunc(all[1:], func(a, b *proxied) int { return strings.Compare(b.name, a.name) }) // nginx first
	return all, stop, nil
}

// reach returns how a workspace's IDE is reached past codehub.
func (b *bareDocker) reach(ctx context.Context, id string) (*proxied, error) {
	found, err := b.api.ContainerInspect(ctx, workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	p := &proxied{name: "directly"}
	for _, n := range found.Container.NetworkSettings.Networks {
		p.address = net.JoinHostPort(n.IPAddress.String(), "8080")
		p.host = p.address
	}
	for _, kv := range found.Container.Config.Env {
		if secret, ok := strings.CutPrefix(kv, runtime.SecretEnv+"="); ok {
			p.headers = []string{"Cookie: " + runtime.SecretCookie + "=" + secret}
		}
	}
	return p, nil
}

// nginx keeps connections to the container open, as docs/https.md#a-reverse-proxy does to codehub, and
// logs no requests, as codehub does at its default level.
func nginx(ctx context.Context, dir, listen, upstream string) (*exec.Cmd, error) {
	config := filepath.Join(dir, "nginx.conf")
	err := os.WriteFile(config, fmt.Appendf(nil, `
daemon off; pid %[1]s/nginx.pid; error_log stderr; worker_processes auto; worker_rlimit_nofile 65536;
events { worker_connections 30000; }
http {
	access_log off; client_max_body_size 0; proxy_temp_path %[1]s/proxy; client_body_temp_path %[1]s/body;
	fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s; keepalive_requests 1000000;
	upstream workspace { server %[3]s; keepalive 256; keepalive_requests 1000000; }
	map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
	server {
		listen %[2]s;
		location / {
			proxy_pass http://workspace; proxy_http_version 1.1; proxy_set_header Host $http_host;
			proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
			proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;
		}
	}
}`, dir, listen, upstream), 0o644)
	return exec.CommandContext(ctx, "nginx", "-c", config), err
}

func caddy(ctx context.Context, dir, listen, upstream string) (*exec.Cmd, error) {
	config := filepath.Join(dir, "Caddyfile")
	err := os.WriteFile(config, fmt.Appendf(nil, "{\nadmin off\nauto_https off\n}\nhttp://%s {\nreverse_proxy %s {\nflush_interval -1\n}\n}\n", listen, upstream), 0o644)
	cmd := exec.CommandContext(ctx, "caddy", "run", "--adapter", "caddyfile", "--config", config)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	return cmd, err
}
