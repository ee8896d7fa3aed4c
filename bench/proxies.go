package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/moby/client"

	"codehub/internal/e2e/proc"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// site is what a rival serves.
type site struct {
	dir       string // for its files
	listen    string
	upstream  string // of the container
	cert, key string // files; without them the rival serves plain http
}

func (s site) scheme() string {
	if s.cert != "" {
		return "https"
	}
	return "http"
}

// rival is another proxy.
type rival struct {
	name    string
	command func(context.Context, site) (*exec.Cmd, error)
}

var (
	nginx        = rival{"nginx", nginxCommand}
	caddy        = rival{"Caddy", caddyCommand}
	configurable = rival{"configurable-http-proxy", configurableCommand}
)

// lineup is codehub and rivals in front of the container of one workspace.
type lineup struct {
	workspace string
	all       []*proxied // codehub first
	stop      []func()
}

func (l *lineup) close() {
	for _, stop := range l.stop {
		stop()
	}
}

// lineup creates a workspace with the test image and starts the rivals in front of it.
func (b *bench) lineup(ctx context.Context, name string, rivals ...rival) (l *lineup, err error) {
	l = &lineup{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.workspace, err = b.api.create(ctx, "bench-"+name, b.small); err != nil {
		return nil, err
	}
	l.stop = append(l.stop, func() { b.api.remove(l.workspace) })
	upstream, secret, err := b.bare.reach(ctx, l.workspace)
	if err != nil {
		return nil, err
	}
	user, err := logIn(ctx, b.server, "admin", proc.AdminPassword)
	if err != nil {
		return nil, err
	}
	ours, err := user.open(ctx, l.workspace)
	if err != nil {
		return nil, err
	}
	l.all = []*proxied{ours}
	for _, r := range rivals {
		dir, err := os.MkdirTemp("", "codehub-bench-rival-")
		if err != nil {
			return nil, err
		}
		l.stop = append(l.stop, func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil { // nginx's workers run as another user
			return nil, err
		}
		listen, err := proc.FreeAddress()
		if err != nil {
			return nil, err
		}
		p, stop, err := r.start(ctx, site{dir: dir, listen: listen, upstream: upstream, cert: b.cert, key: b.key}, secret)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		l.stop = append([]func(){stop}, l.stop...)
		l.all = append(l.all, p)
	}
	return l, nil
}

// reach returns the address of a workspace's IDE and its secret.
func (b *bareDocker) reach(ctx context.Context, id string) (upstream, secret string, err error) {
	found, err := b.api.ContainerInspect(ctx, workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		return "", "", err
	}
	for _, n := range found.Container.NetworkSettings.Networks {
		upstream = net.JoinHostPort(n.IPAddress.String(), "8080")
	}
	for _, kv := range found.Container.Config.Env {
		if v, ok := strings.CutPrefix(kv, runtime.SecretEnv+"="); ok {
			secret = v
		}
	}
	return upstream, secret, nil
}

// start starts the rival and waits until it relays requests.
func (r rival) start(ctx context.Context, s site, secret string) (p *proxied, stop func(), err error) {
	var cmd *exec.Cmd
	stop = func() {
		if cmd != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
			cmd = nil
		}
	}
	p = &proxied{name: r.name, scheme: s.scheme(), address: s.listen, host: s.listen, headers: []string{"Cookie: " + runtime.SecretCookie + "=" + secret}}
	p.pids = func() ([]int, error) { return groupOf(cmd.Process.Pid) }
	p.restart = func(ctx context.Context) error {
		stop()
		c, err := r.command(ctx, s)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		// Its own process group, because nginx leaves its workers behind.
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			return err
		}
		cmd = c
		if err := p.await(ctx); err != nil {
			stop()
			return fmt.Errorf("%w: %s", err, out.Bytes())
		}
		return nil
	}
	return p, stop, p.restart(ctx)
}

// groupOf lists the processes of a process group.
func groupOf(group int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if fields[2] == strconv.Itoa(group) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// nginxCommand keeps connections to the container open, as docs/https.md#a-reverse-proxy does to
// codehub, and logs no requests, as codehub does at its default level.
func nginxCommand(ctx context.Context, s site) (*exec.Cmd, error) {
	listen := s.listen
	if s.cert != "" {
		listen += fmt.Sprintf(" ssl http2; ssl_certificate %s; ssl_certificate_key %s", s.cert, s.key)
	}
	config := filepath.Join(s.dir, "nginx.conf")
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
}`, s.dir, listen, s.upstream), 0o644)
	return exec.CommandContext(ctx, "nginx", "-c", config), err
}

func caddyCommand(ctx context.Context, s site) (*exec.Cmd, error) {
	ip, port, err := net.SplitHostPort(s.listen)
	if err != nil {
		return nil, err
	}
	tls := ""
	if s.cert != "" {
		tls = "tls " + s.cert + " " + s.key
	}
	config := filepath.Join(s.dir, "Caddyfile")
	err = os.WriteFile(config, fmt.Appendf(nil, `
{
	admin off
	auto_https off
}
%s://:%s {
	bind %s
	%s
	reverse_proxy %s {
		flush_interval -1
	}
}`, s.scheme(), port, ip, tls, s.upstream), 0o644)
	cmd := exec.CommandContext(ctx, "caddy", "run", "--adapter", "caddyfile", "--config", config)
	cmd.Env = append(os.Environ(), "HOME="+s.dir)
	return cmd, err
}

// configurableCommand installs JupyterHub's proxy from npm.
func configurableCommand(ctx context.Context, s site) (*exec.Cmd, error) {
	program := filepath.Join(s.dir, "node_modules/.bin/configurable-http-proxy")
	if _, err := os.Stat(program); err != nil {
		if out, err := exec.CommandContext(ctx, "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", s.dir, "configurable-http-proxy@5").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("npm: %w: %s", err, out)
		}
	}
	api, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	ip, port, err := net.SplitHostPort(s.listen)
	if err != nil {
		return nil, err
	}
	_, apiPort, err := net.SplitHostPort(api)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, program, "--log-level", "error", "--ip", ip, "--port", port,
		"--api-ip", "127.0.0.1", "--api-port", apiPort, "--default-target", "http://"+s.upstream), nil
}
