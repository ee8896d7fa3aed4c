package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"codehub/api"
	agentinside "codehub/internal/agent/inside"
	"codehub/internal/attach"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/sshgate"
	"codehub/internal/workspace"
)

// The least throughput by SSH as a part of sshd's, and the most that an echo may take
// longer.
const (
	sshShare, stdioShare = 0.7, 0.5
	echoMore             = 2 * time.Millisecond
	echoes               = 3000
)

// sshWorkspace is the workspace of this figure. It runs.
var sshWorkspace = workspace.Workspace{
	ID: "0198c0de-0000-7000-8000-000000000001", OwnerID: "0198c0de-0000-7000-8000-000000000002", Name: "bench",
	Phase: workspace.PhaseRunning, Operation: workspace.OpNone, DesiredState: workspace.DesiredRunning,
}

// sshRows stands for the database: one user with one key.
type sshRows struct{ user postgres.User }

func (s sshRows) SSHKeyUser(context.Context, []byte) (postgres.User, postgres.SSHKey, error) {
	return s.user, postgres.SSHKey{ID: "key"}, nil
}
func (sshRows) TouchSSHKey(context.Context, string, time.Time) error { return nil }
func (sshRows) NamedWorkspace(context.Context, workspace.Caller, string) (workspace.ID, error) {
	return sshWorkspace.ID, nil
}
func (sshRows) Workspace(context.Context, workspace.Caller, workspace.ID) (workspace.Workspace, error) {
	return sshWorkspace, nil
}
func (sshRows) Wake(context.Context, workspace.Caller, workspace.ID) (workspace.Workspace, error) {
	return sshWorkspace, nil
}
func (sshRows) Watch(ctx context.Context, _ string) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

type sshUpstream struct{ up runtime.Upstream }

func (u sshUpstream) Upstream(context.Context, workspace.ID) (runtime.Upstream, error) {
	return u.up, nil
}

// sshBench is sshd and codehub's gate, and OpenSSH's client.
type sshBench struct {
	dir    string
	config string // of the client
	ends   []func()
}

func (b *sshBench) close() {
	for _, end := range slices.Backward(b.ends) {
		end()
	}
}

// sshFigure compares SSH through codehub with sshd, for the client's default settings.
// Neither Docker nor the database is on the way of the data.
func sshFigure(ctx context.Context, binary string, n int) error {
	mib, err := envInt("CODEHUB_BENCH_TRANSFER_MIB", 1024)
	if err != nil {
		return err
	}
	b := &sshBench{}
	defer b.close()
	if err := b.start(ctx, binary); err != nil {
		return err
	}
	file := filepath.Join(b.dir, "file")
	if err := exec.CommandContext(ctx, "dd", "if=/dev/urandom", "of="+file, "bs=1M", fmt.Sprint("count=", mib), "status=none").Run(); err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	hosts := []string{"sshd", "gate", "stdio"}
	rate := map[string][]float64{}
	rounds := max(1, min(n, 5))
	for direction, args := range map[string]func(host string) []string{
		"up":   func(host string) []string { return []string{file, host + ":" + filepath.Join(b.dir, "copy")} },
		"down": func(host string) []string { return []string{host + ":" + file, filepath.Join(b.dir, "copy")} },
	} {
		err := inTurns(rounds, len(hosts), func(i int) error {
			start := time.Now()
			out, err := exec.CommandContext(ctx, "scp", append([]string{"-q", "-F", b.config}, args(hosts[i])...)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("scp %s with %s: %w: %s", direction, hosts[i], err, out)
			}
			key := direction + " " + hosts[i]
			rate[key] = append(rate[key], float64(mib)/time.Since(start).Seconds())
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, direction := range []string{"up", "down"} {
		bare := medianBy(rate[direction+" sshd"], same)
		for _, c := range []struct {
			host  string
			least float64
		}{{"gate", sshShare}, {"stdio", stdioShare}} {
			ours := medianBy(rate[direction+" "+c.host], same)
			fmt.Printf("ssh: scp %s, %s %.0f MiB/s, sshd %.0f MiB/s, ratio %.2f (at least %.1f): %s\n",
				direction, c.host, ours, bare, ours/bare, c.least, verdict(ours/bare >= c.least))
		}
	}
	echo := map[string][]time.Duration{}
	for _, host := range hosts[:2] {
		if echo[host], err = b.echo(ctx, host); err != nil {
			return err
		}
	}
	p99 := func(host string) time.Duration { return echo[host][len(echo[host])*99/100] }
	more := p99("gate") - p99("sshd")
	fmt.Printf("ssh: echo, median %v, p99 %v, sshd %v and %v, p99 %v more (at most %v): %s\n", median(echo["gate"]), p99("gate"),
		median(echo["sshd"]), p99("sshd"), more, echoMore, verdict(more <= echoMore))
	return nil
}

func same(v float64) float64 { return v }

// echo returns the sorted times of echoes.
func (b *sshBench) echo(ctx context.Context, host string) ([]time.Duration, error) {
	cmd := exec.CommandContext(ctx, "ssh", "-F", b.config, host, "cat")
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
	lines := bufio.NewReader(out)
	var times []time.Duration
	for i := range echoes + 100 {
		start := time.Now()
		if _, err := io.WriteString(in, "x\n"); err != nil {
			return nil, err
		}
		if _, err := lines.ReadString('\n'); err != nil {
			return nil, err
		}
		if i >= 100 {
			times = append(times, time.Since(start))
		}
	}
	in.Close()
	slices.Sort(times)
	return times, cmd.Wait()
}

func (b *sshBench) start(ctx context.Context, binary string) (err error) {
	if b.dir, err = os.MkdirTemp("", "codehub-bench-ssh"); err != nil {
		return err
	}
	b.ends = append(b.ends, func() { os.RemoveAll(b.dir) })
	me, err := user.Current()
	if err != nil {
		return err
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return err
	}
	key := filepath.Join(b.dir, "key")
	public := ssh.MarshalAuthorizedKey(signer.PublicKey())
	if err := errors.Join(os.WriteFile(key, pem.EncodeToMemory(block), 0o600), os.WriteFile(key+".pub", public, 0o600)); err != nil {
		return err
	}
	sshd, err := b.sshd(ctx, key)
	if err != nil {
		return err
	}
	gate, site, err := b.gate(me.Uid)
	if err != nil {
		return err
	}
	b.config = filepath.Join(b.dir, "config")
	text := fmt.Sprintf(`Host sshd
	HostName 127.0.0.1
	Port %s
Host gate
	HostName 127.0.0.1
	Port %s
Host stdio
	ProxyCommand %s ssh --stdio --url %s %s
Host *
	User %s
	IdentityFile %s
	IdentitiesOnly yes
	UserKnownHostsFile /dev/null
	StrictHostKeyChecking no
	LogLevel ERROR
`, sshd, gate, binary, site, sshWorkspace.ID, me.Username, key)
	return os.WriteFile(b.config, []byte(text), 0o600)
}

// sshd starts OpenSSH's server and returns its port.
func (b *sshBench) sshd(ctx context.Context, key string) (port string, err error) {
	program := env("CODEHUB_BENCH_SSHD", "/usr/sbin/sshd")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err = net.SplitHostPort(l.Addr().String())
	l.Close()
	if err != nil {
		return "", err
	}
	config := filepath.Join(b.dir, "sshd_config")
	text := fmt.Sprintf("ListenAddress 127.0.0.1:%s\nHostKey %s\nAuthorizedKeysFile %s.pub\nStrictModes no\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\nPermitRootLogin prohibit-password\n", port, key, key)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", err
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where sshd drops its privileges
			return "", err
		}
	}
	cmd := exec.CommandContext(ctx, program, "-D", "-e", "-f", config)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start sshd: %w", err)
	}
	b.ends = append(b.ends, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for range 100 {
		if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			c.Close()
			return port, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", fmt.Errorf("sshd does not listen: %s", errs.String())
}

// gate starts codehub's SSH server before an agent, and the API that carries SSH.
func (b *sshBench) gate(uid string) (port, site string, err error) {
	log := slog.New(slog.DiscardHandler)
	var ls [3]net.Listener
	for i := range ls {
		if ls[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", "", err
		}
		b.ends = append(b.ends, func() { ls[i].Close() })
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", "", err
	}
	agent := agentinside.NewServer(agentinside.Config{Secret: "secret", Version: "bench", Home: home, Processes: &agentinside.Processes{}, Log: log})
	go func() { _ = agent.Serve(ls[0]) }()
	rows := sshRows{postgres.User{ID: sshWorkspace.OwnerID, Username: uid}}
	gate, err := sshgate.New(sshgate.Config{
		Settings: sshgate.Settings{MaxConnections: 100, MaxPerUser: 100}, Seed: make([]byte, ed25519.SeedSize), Store: rows, Log: log,
		Attacher: attach.New(attach.Config{Store: rows, Sessions: rows,
			Runtime: sshUpstream{runtime.Upstream{ContainerID: "bench", Agent: ls[0].Addr().String(), Secret: "secret"}}}),
		PageOf: func(workspace.ID) string { return "" },
	})
	if err != nil {
		return "", "", err
	}
	ctx, stop := context.WithCancel(context.Background())
	b.ends = append(b.ends, stop)
	go func() { _ = gate.Serve(ctx, ls[1]) }()
	caller := workspace.Caller{UserID: sshWorkspace.OwnerID}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/workspaces/{id}", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Workspace{ID: string(sshWorkspace.ID), Name: sshWorkspace.Name})
	})
	mux.HandleFunc("GET /api/v1/workspaces/{id}/ssh", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{api.SSHProtocol}, CompressionMode: websocket.CompressionDisabled})
		if err != nil {
			return
		}
		defer c.CloseNow()
		gate.ServeCaller(websocket.NetConn(ctx, c, websocket.MessageBinary), caller, sshWorkspace.ID, netip.IPv6Loopback())
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(ls[2]) }()
	b.ends = append(b.ends, func() { _ = srv.Close() })
	_, port, err = net.SplitHostPort(ls[1].Addr().String())
	return port, "http://" + ls[2].Addr().String(), err
}
