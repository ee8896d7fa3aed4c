package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
)

const (
	// echoes are those of one round, after warmEchoes that are not counted.
	echoes, warmEchoes = 1000, 100
	echoMore           = 2 * time.Millisecond
	// sshdImage is the workspace image with sshd.
	sshdImage = "codehub/bench-sshd:latest"
	sshdPort  = "2200"
)

// sshWays are the ways into the workspace: sshd, codehub's own port and codehub ssh --stdio,
// with the least throughput as a part of sshd's.
var sshWays = []struct {
	host  string
	least float64
}{{"sshd", 1}, {"gate", 0.7}, {"stdio", 0.5}}

// sshBench is a workspace with sshd beside its agent, and OpenSSH's client.
type sshBench struct {
	own    *bench
	id     string // of the workspace
	dir    string
	config string // of the client
}

// ssh compares SSH through codehub with sshd in the same container, which the client
// reaches directly. The client has its default settings.
func ssh(ctx context.Context, o options) error {
	size, err := transferSize()
	if err != nil {
		return err
	}
	listen, err := proc.FreeAddress()
	if err != nil {
		return err
	}
	own, err := serve(ctx, o, proc.Options{Env: []string{"CODEHUB_SSH_LISTEN=" + listen}})
	if err != nil {
		return err
	}
	defer own.close()
	s := &sshBench{own: own}
	if s.dir, err = os.MkdirTemp("", "codehub-bench-ssh-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.dir)
	if err := s.prepare(ctx, listen); err != nil {
		return err
	}
	if err := s.copies(ctx, size); err != nil {
		return err
	}
	return s.echoes(ctx)
}

// copies measures scp. Nothing is written to a disk: the files are in the page cache, and
// the copies go to /dev/null.
func (s *sshBench) copies(ctx context.Context, size int) error {
	file := filepath.Join(s.dir, "file")
	write := func(to string) string { return fmt.Sprintf("head -c %d /dev/urandom >%s", size, to) }
	if _, _, err := shell(ctx, write(file)); err != nil {
		return err
	}
	if err := inside(ctx, s.id, write("~/file")); err != nil {
		return err
	}
	for _, direction := range []struct {
		name     string
		from, to func(host string) string
	}{
		{"up", func(string) string { return file }, func(host string) string { return host + ":/dev/null" }},
		{"down", func(host string) string { return host + ":file" }, func(string) string { return "/dev/null" }},
	} {
		took := make([][]time.Duration, len(sshWays))
		err := inTurns(min(s.own.n, 5), len(sshWays), func(i int) error {
			host := sshWays[i].host
			start := time.Now()
			if out, err := s.command(ctx, "scp", "-q", direction.from(host), direction.to(host)).CombinedOutput(); err != nil {
				return fmt.Errorf("scp %s by %s: %w: %s", direction.name, host, err, out)
			}
			took[i] = append(took[i], time.Since(start))
			return nil
		})
		if err != nil {
			return err
		}
		rate := func(i int) float64 { return float64(size>>20) / median(took[i]).Seconds() }
		for i, way := range sshWays[1:] {
			ratio := rate(i+1) / rate(0)
			fmt.Printf("ssh: scp of %d MiB %s, %s %.0f MiB/s, sshd %.0f MiB/s, ratio %.2f (at least %.1f): %s\n",
				size>>20, direction.name, way.host, rate(i+1), rate(0), ratio, way.least, verdict(ratio >= way.least))
		}
	}
	return nil
}

// echoes measures the echo of lines by a program on a terminal.
func (s *sshBench) echoes(ctx context.Context) error {
	took := make([][]time.Duration, len(sshWays))
	err := inTurns(min(s.own.n, 5), len(took), func(i int) error {
		round, err := s.echo(ctx, sshWays[i].host)
		took[i] = append(took[i], round...)
		if err != nil {
			return fmt.Errorf("echo by %s: %w", sshWays[i].host, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	p50 := func(i int) time.Duration { return percentile(took[i], 50).Round(time.Microsecond) }
	p99 := func(i int) time.Duration { return percentile(took[i], 99).Round(time.Microsecond) }
	for i, way := range sshWays[1:] {
		more := p99(i+1) - p99(0)
		fmt.Printf("ssh: echo on a terminal, %s median %v, p99 %v, sshd %v and %v, p99 %v more (at most %v): %s\n",
			way.host, p50(i+1), p99(i+1), p50(0), p99(0), more, echoMore, verdict(more <= echoMore))
	}
	return nil
}

// echo returns the times of one round's echoes.
func (s *sshBench) echo(ctx context.Context, host string) ([]time.Duration, error) {
	cmd := s.command(ctx, "ssh", "-tt", host, "stty -echo; echo ready; exec cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewReader(out)
	for line := ""; strings.TrimSpace(line) != "ready"; {
		if line, err = lines.ReadString('\n'); err != nil {
			return nil, err
		}
	}
	var took []time.Duration
	for range warmEchoes + echoes {
		start := time.Now()
		if _, err := io.WriteString(in, "x\n"); err != nil {
			return nil, err
		}
		if _, err := lines.ReadString('\n'); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took[warmEchoes:], nil
}

// command returns a command of OpenSSH's client, with the login of codehub ssh --stdio.
func (s *sshBench) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-F", s.config}, args...)...)
	cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK=", "CODEHUB_SESSION_TOKEN="+s.own.api.token)
	return cmd
}

// prepare creates a workspace with an sshd that runs as its user, and configures the client.
func (s *sshBench) prepare(ctx context.Context, gate string) (err error) {
	if err := buildSSHD(ctx, s.own.image); err != nil {
		return err
	}
	if s.id, err = s.own.api.create(ctx, "bench", sshdImage); err != nil {
		return err
	}
	key := filepath.Join(s.dir, "key")
	if _, _, err := shell(ctx, `ssh-keygen -q -t ed25519 -N "" -C bench -f "$0"`, key); err != nil {
		return err
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		return err
	}
	if _, err := s.own.api.AddSSHKey(ctx, api.AddSSHKey{PublicKey: string(public)}); err != nil {
		return err
	}
	err = inside(ctx, s.id, `mkdir -p ~/.sshd && echo '`+strings.TrimSpace(string(public))+`' >~/.sshd/authorized && ssh-keygen -q -t ed25519 -N '' -f ~/.sshd/host && `+
		`/usr/sbin/sshd -f /dev/null -p `+sshdPort+` -h ~/.sshd/host -o AuthorizedKeysFile="$HOME/.sshd/authorized" -o StrictModes=no -o UsePAM=no -o PidFile=none -o "Subsystem=sftp internal-sftp"`)
	if err != nil {
		return err
	}
	direct, err := s.own.bare.reach(ctx, s.id)
	if err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(direct.address)
	gateHost, gatePort, _ := net.SplitHostPort(gate)
	s.config = filepath.Join(s.dir, "config")
	return os.WriteFile(s.config, []byte("Host sshd\n\tUser coder\n\tHostName "+host+"\n\tPort "+sshdPort+
		"\nHost gate\n\tUser bench\n\tHostName "+gateHost+"\n\tPort "+gatePort+
		"\nHost stdio\n\tProxyCommand "+s.own.binary+" ssh --stdio --url "+s.own.server.URL+" "+s.id+
		"\nHost *\n\tIdentityFile "+key+"\n\tIdentitiesOnly yes\n\tUserKnownHostsFile /dev/null\n\tStrictHostKeyChecking no\n\tBatchMode yes\n\tLogLevel ERROR\n"), 0o600)
}

// buildSSHD builds sshdImage.
func buildSSHD(ctx context.Context, workspaceImage string) error {
	args := []string{"build", "--quiet", "--tag", sshdImage, "--build-arg", "WORKSPACE=" + workspaceImage}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if os.Getenv(name) != "" {
			args = append(args, "--build-arg", name)
		}
	}
	cmd := exec.CommandContext(ctx, "docker", append(args, "-")...)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	cmd.Stdin = strings.NewReader(`ARG WORKSPACE
FROM ${WORKSPACE}
USER 0:0
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-server \
 && rm -rf /var/lib/apt/lists/*
USER 1000:1000
`)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", sshdImage, err, lastLines(string(out), 20))
	}
	return nil
}
