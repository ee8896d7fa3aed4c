package e2e

import (
	"bufio"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"codehub/internal/testing/e2e/proc"
)

// redisServer is a Redis process of one test, without persistence.
type redisServer struct {
	testing.TB
	address string
	cmd     *exec.Cmd
}

func startRedis(t *testing.T) *redisServer {
	t.Helper()
	address, err := proc.FreeAddress() // the port must stay free while Redis is down
	if err != nil {
		t.Fatal(err)
	}
	r := &redisServer{TB: t, address: address}
	r.start()
	cleanup(t, r.kill)
	return r
}

func (r *redisServer) URL() string { return "redis://" + r.address + "/0" }

func (r *redisServer) start() {
	r.Helper()
	host, port, _ := net.SplitHostPort(r.address)
	r.cmd = exec.Command("redis-server", "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", r.TempDir())
	if err := r.cmd.Start(); err != nil {
		r.Errorf("start redis-server: %v", err)
		r.cmd = nil
		return
	}
	deadline := time.Now().Add(20 * time.Second)
	for r.command("PING") != "+PONG" {
		if time.Now().After(deadline) {
			r.Error("redis-server did not answer PING")
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// kill ends Redis, which loses its data.
func (r *redisServer) kill() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	r.cmd = nil
}

func (r *redisServer) flush() {
	r.Helper()
	if answer := r.command("FLUSHALL"); answer != "+OK" {
		r.Errorf("FLUSHALL: %q", answer)
	}
}

// command sends a command and returns the first line of the answer, "" for
// none.
func (r *redisServer) command(command string) string {
	conn, err := net.DialTimeout("tcp", r.address, time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return ""
	}
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line)
}
