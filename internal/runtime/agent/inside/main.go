package inside

import (
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"

	cruntime "codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/busy"
)

// Main runs `codehub agent -- COMMAND ARG…` as the first process of a workspace's
// container and returns the exit code. COMMAND is the image's own: it starts the IDE.
// The container's secret comes in the environment (runtime.SecretEnv), of which only
// the IDE gets it.
func Main(args []string, version string) int {
	if os.Getpid() != 1 || len(args) < 2 || args[0] != "--" {
		fmt.Fprintln(os.Stderr, "codehub agent is the first process of a workspace's container; it is not for use by hand")
		return 2
	}
	tune()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the agent outlives the reader of its log
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	stdlog.SetOutput(io.Discard) // package ssh/agent logs what programs are refused there
	awaitsSetup := os.Getenv(cruntime.SetupEnv) != ""
	_ = os.Unsetenv(cruntime.SetupEnv)
	withSecret := os.Environ()
	secret := os.Getenv(cruntime.SecretEnv)
	if err := os.Unsetenv(cruntime.SecretEnv); err != nil {
		log.Error("remove the secret from the environment failed", "err", err)
		return 1
	}
	processes := &Processes{}
	go processes.Reap(nil)
	server := NewServer(Config{
		Secret: secret, Addr: net.JoinHostPort("", strconv.Itoa(cruntime.AgentPort)), Version: version,
		Home: cruntime.HomeDir, Hidden: []int{cruntime.IDEPort, cruntime.AgentPort}, Processes: processes, BusySocket: busy.Socket, Log: log,
		AwaitsSetup: awaitsSetup, FilesDir: memoryDir, Program: account.AgentDir + "/" + account.AgentFile,
		GitConfig: filepath.Join(memoryDir, "gitconfig"), SSHSocket: agent.SSHSocket, ClientSocket: agent.ClientSocket, Workspace: os.Getenv(workspaceEnv),
	})
	withSecret = append(withSecret, server.env...)
	serve(server)
	ide := &supervisor{
		command: args[1:], env: server.withGit(withSecret), processes: processes, signals: signals,
		listens:  func() bool { return listensOn(cruntime.IDEPort) },
		oomKills: oomKills,
		others:   func(sig syscall.Signal) error { return syscall.Kill(-1, sig) },
		ending:   server.end,
		log:      log,
	}
	if awaitsSetup {
		if err := ide.awaitSetup(server.setup.taken, setupPatience); err != nil {
			log.Error("IDE not started", "err", err)
			return 1
		}
		ide.env = server.withGit(append(withSecret, server.setup.env...))
	}
	return ide.run()
}

// workspaceEnv is the variable with the workspace's id.
const workspaceEnv = "CODEHUB_WORKSPACE_ID"

// forwarded are the signals that the agent passes on to the IDE.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// tune makes the Go runtime small: the agent is idle most of the time, in hundreds of
// containers on a machine, and an image's environment may have other settings for
// the Go programs of its users.
func tune() {
	runtime.GOMAXPROCS(min(runtime.NumCPU(), 4)) // for one transfer at full speed; also ends the regular check of the limit
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(64 << 20) // collects sooner above it
	debug.FreeOSMemory()           // of the start
	spareThreads(threadsFor(number(text("/sys/fs/cgroup", "pids.max")), number(text("/sys/fs/cgroup", "pids/pids.max"))))
}

// maxSpareThreads is how many threads the agent has before it needs them: a program in Go ends
// when it cannot start one, so that programs which take all processes of the workspace would end
// the agent, and the container with it.
const maxSpareThreads = 16

// threadsFor returns the number of spare threads for a limit on the workspace's processes, of
// which one is 0.
func threadsFor(limits ...int64) int {
	n := int64(maxSpareThreads)
	for _, limit := range limits {
		if limit > 0 {
			n = min(n, limit/8)
		}
	}
	return int(n)
}

// spareThreads starts n threads. Go keeps those that it does not need.
func spareThreads(n int) {
	var started, done sync.WaitGroup
	started.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			started.Done()
			started.Wait() // each holds a thread until all have one
		})
	}
	done.Wait()
}

// serve serves the agent's requests in the background. An error leaves the IDE
// without an agent.
func serve(s *Server) {
	l, err := net.Listen("tcp", s.cfg.Addr)
	if err != nil {
		s.cfg.Log.Error("listen for requests failed", "err", err)
		return
	}
	go func() {
		s.cfg.Log.Error("serve requests failed", "err", s.Serve(l))
	}()
}
