package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/e2e/proc"
)

// The least throughput by SSH as a part of sshd's, and the most that an echo may take
// longer.
const (
	sshShare, stdioShare = 0.7, 0.5
	echoMore             = 2 * time.Millisecond
)

const (
	sshRounds = 5
	// echoes are those of one round, after warmEchoes that are not counted.
	echoes, warmEchoes = 1000, 100
	// sshdImage is the workspace image with sshd.
	sshdImage = "codehub/bench-sshd:latest"
	sshdPort  = "2200"
)

// sshHosts are the ways into the workspace: sshd, codehub's own port, codehub ssh --stdio,
// and sshd with the cipher that OpenSSH's client chooses for codehub.
var sshHosts = []string{"sshd", "gate", "stdio", "sshd-gcm"}

// sshBench is a workspace with sshd beside its agent, and the configuration of OpenSSH's
// client for all ways into it.
type sshBench struct {
	own    *bench
	api    *client.Client // with a token: WebSockets by a session need a page's Origin
	id     string         // of the workspace
	dir    string
	config string // of the client
	stop   []func()
}

func (s *sshBench) close() {
	for _, stop := range slices.Backward(s.stop) {
		stop()
	}
}

// ssh compares SSH through codehub with sshd in the same container, which the client
// reaches directly. The client has its default settings.
func (b *bench) ssh(ctx context.Context) error {
	size, err := transferSize()
	if err != nil {
		return err
	}
	s, err := b.openSSH(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	rounds := max(1, min(b.n, sshRounds))
	if err := s.copies(ctx, size, rounds); err != nil {
		return err
	}
	return s.echoes(ctx, rounds)
}

// copies measures scp. Nothing is written to a disk: the files are in the page cache, and
// the copies go to /dev/null.
func (s *sshBench) copies(ctx context.Context, size, rounds int) error {
	file := filepath.Join(s.dir, "file")
	write := func(to string) string { return fmt.Sprintf("head -c %d /dev/urandom >%s", size, to) }
	if out, err := exec.CommandContext(ctx, "sh", "-c", write(file)).CombinedOutput(); err != nil {
		return fmt.Errorf("make a file: %w: %s", err, out)
	}
	if err := s.inside(ctx, write("file"), nil); err != nil {
		return err
	}
	for _, direction := range []struct {
		name     string
		from, to func(host string) string
	}{
		{"up", func(string) string { return file }, func(host string) string { return host + ":/dev/null" }},
		{"down", func(host string) string { return host + ":file" }, func(string) string { return "/dev/null" }},
	} {
		took := make([][]time.Duration, len(sshHosts))
		err := inTurns(rounds, len(sshHosts), func(i int) error {
			host := sshHosts[i]
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
		rate := func(i int) float64 { return float64(size) / (1 << 20) / median(took[i]).Seconds() }
		for i, least := range []float64{0, sshShare, stdioShare} {
			if least > 0 {
				ratio := rate(i) / rate(0)
				fmt.Printf("ssh: scp of %d MiB %s, %s %.0f MiB/s, sshd %.0f MiB/s, ratio %.2f (at least %.1f): %s; sshd with AES-GCM %.0f MiB/s, ratio %.2f\n",
					size>>20, direction.name, sshHosts[i], rate(i), rate(0), ratio, least, verdict(ratio >= least), rate(3), rate(i)/rate(3))
			}
		}
	}
	return nil
}

// echoes measures the echo of lines by a program on a terminal.
func (s *sshBench) echoes(ctx context.Context, rounds int) error {
	took := make([][]time.Duration, len(sshHosts)-1) // the cipher makes no difference
	err := inTurns(rounds, len(took), func(i int) error {
		round, err := s.echo(ctx, sshHosts[i])
		took[i] = append(took[i], round...)
		if err != nil {
			return fmt.Errorf("echo by %s: %w", sshHosts[i], err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	us := func(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
	p99 := func(i int) time.Duration { return percentile(took[i], 99) }
	for i := 1; i < len(took); i++ {
		more := p99(i) - p99(0)
		fmt.Printf("ssh: echo on a terminal, %s median %v, p99 %v, sshd %v and %v, p99 %v more (at most %v): %s\n", sshHosts[i],
			us(median(took[i])), us(p99(i)), us(median(took[0])), us(p99(0)), us(more), echoMore, verdict(more <= echoMore))
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
	for i := range warmEchoes + echoes {
		start := time.Now()
		if _, err := io.WriteString(in, "x\n"); err != nil {
			return nil, err
		}
		if _, err := lines.ReadString('\n'); err != nil {
			return nil, err
		}
		if i >= warmEchoes {
			took = append(took, time.Since(start))
		}
	}
	return took, nil
}

// command returns a command of OpenSSH's client, with the login of codehub ssh --stdio.
func (s *sshBench) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-F", s.config}, args...)...)
	cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK=", "CODEHUB_SESSION_TOKEN="+s.own.api.token)
	return cmd
}

// openSSH starts a server and a workspace with sshd.
func (b *bench) openSSH(ctx context.Context) (opened *sshBench, err error) {
	if err := buildSSHD(ctx, b.image); err != nil {
		return nil, err
	}
	listen, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &sshBench{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.own, err = b.serve(ctx, proc.Options{Env: []string{"CODEHUB_SSH_LISTEN=" + listen}}); err != nil {
		return nil, err
	}
	s.stop = append(s.stop, s.own.close)
	if s.api, err = client.New(s.own.server.URL, s.own.api.token); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "codehub-bench-ssh-"); err != nil {
		return nil, err
	}
	s.stop = append(s.stop, func() { _ = os.RemoveAll(s.dir) })
	if s.id, err = s.own.api.create(ctx, "bench", sshdImage); err != nil {
		return nil, err
	}
	key := filepath.Join(s.dir, "key")
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", key).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a key: %w: %s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		return nil, err
	}
	if _, err := s.api.AddSSHKey(ctx, api.AddSSHKey{PublicKey: string(public)}); err != nil {
		return nil, err
	}
	sshd, err := s.startSSHD(ctx, public)
	if err != nil {
		return nil, err
	}
	return s, s.configure(listen, sshd, key)
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

// inside runs a shell command in the workspace to its end.
func (s *sshBench) inside(ctx context.Context, shell string, stdin io.Reader) error {
	x, err := s.api.Exec(ctx, s.id, api.Exec{Shell: shell})
	if err != nil {
		return err
	}
	defer x.Close()
	if stdin != nil {
		go func() { _ = x.Stdin(ctx, stdin) }()
	}
	var out bytes.Buffer
	code, err := x.Run(ctx, &out, &out, nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d: %s", code, lastLines(out.String(), 20))
	}
	if err != nil {
		return fmt.Errorf("in the workspace: %.100s: %w", shell, err)
	}
	return nil
}

// startSSHD runs sshd as the workspace's user, and returns its address.
func (s *sshBench) startSSHD(ctx context.Context, public []byte) (string, error) {
	err := s.inside(ctx, "mkdir -p .sshd && cat >.sshd/authorized && ssh-keygen -q -t ed25519 -N '' -f .sshd/host", bytes.NewReader(public))
	if err != nil {
		return "", err
	}
	upstream, _, err := s.own.bare.reach(ctx, s.id)
	if err != nil {
		return "", err
	}
	host, _, err := net.SplitHostPort(upstream)
	if err != nil {
		return "", err
	}
	address := net.JoinHostPort(host, sshdPort)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- s.inside(running, "exec /usr/sbin/sshd -D -e -f /dev/null -p "+sshdPort+` -h "$HOME/.sshd/host" -o AuthorizedKeysFile="$HOME/.sshd/authorized" `+
			`-o StrictModes=no -o UsePAM=no -o PidFile=none -o "Subsystem=sftp internal-sftp"`, nil)
	}()
	s.stop = append(s.stop, stop)
	for range 100 {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			c.Close()
			return address, nil
		}
		select {
		case err := <-ended:
			return "", fmt.Errorf("sshd: %w", errors.Join(err, errors.New("it has ended")))
		case <-time.After(100 * time.Millisecond):
		}
	}
	return "", fmt.Errorf("sshd does not listen on %s", address)
}

// configure writes the configuration of OpenSSH's client.
func (s *sshBench) configure(gate, sshd, key string) error {
	address := func(hostPort string) string {
		host, port, _ := net.SplitHostPort(hostPort)
		return "\tHostName " + host + "\n\tPort " + port + "\n"
	}
	s.config = filepath.Join(s.dir, "config")
	text := "Host sshd\n\tUser coder\n" + address(sshd) +
		"Host sshd-gcm\n\tUser coder\n\tCiphers aes128-gcm@openssh.com\n" + address(sshd) +
		"Host gate\n\tUser bench\n" + address(gate) +
		"Host stdio\n\tProxyCommand " + s.own.binary + " ssh --stdio --url " + s.own.server.URL + " " + s.id + "\n" +
		"Host *\n\tIdentityFile " + key + "\n\tIdentitiesOnly yes\n\tUserKnownHostsFile /dev/null\n\tStrictHostKeyChecking no\n\tBatchMode yes\n\tLogLevel ERROR\n"
	return os.WriteFile(s.config, []byte(text), 0o600)
}
