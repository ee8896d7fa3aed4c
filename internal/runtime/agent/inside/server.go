// Package inside is the end of the agent's protocol in the workspace: what `codehub
// agent`, the first process of the container, serves. Package agent describes the
// protocol.
package inside

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/busy"
)

// Config configures a Server. Fields are required unless marked optional.
type Config struct {
	// Secret is the container's secret, which every request carries. Without one
	// every request is refused.
	Secret string
	// Addr is where the agent listens; the server itself ignores it.
	Addr string
	// Version is the version of the executable.
	Version string
	// Home is the folder that commands begin in, and whose disk Usage reports.
	Home string
	// Hidden are the ports that Ports leaves out: the IDE's and the agent's own.
	Hidden []int
	// BusySocket is where commands hold the workspace awake (package busy). Serve
	// listens there; empty: nowhere.
	BusySocket string
	// ResetInterval is how often connections are checked for a server that has gone; 0: 10 s.
	ResetInterval time.Duration
	// AwaitsSetup: the IDE waits for a setup (agent.PathSetup). Without it none is taken.
	AwaitsSetup bool
	// Program is the path of codehub, whose git-credential answers Git; empty: Git is not configured.
	Program string
	// FilesDir is the folder in memory for the files of a setup; see memoryDir.
	FilesDir string
	// GitConfig is the file in memory that commands get as git's configuration of the system, and
	// SSHSocket the socket where the SSH key of the workspace's owner is offered; empty: none.
	// Signatures come from the server that listens on ClientSocket for the workspace.
	GitConfig, SSHSocket, ClientSocket, Workspace string
	// Processes starts commands and reaps them.
	Processes *Processes
	Log       *slog.Logger
}

// Server serves the agent's protocol.
type Server struct {
	cfg     Config
	mux     http.ServeMux
	waiting waiting
	sockets sockets
	ports   portScanner
	holders busy.Holders
	setup   setup
	git     gitState
	env     []string // that commands and the IDE have besides the agent's own: NAME=value
}

// NewServer returns a server.
func NewServer(cfg Config) *Server {
	s := &Server{cfg: cfg}
	s.env = s.beginGit()
	s.ports.hidden = cfg.Hidden
	s.setup.taken = make(chan struct{})
	s.mux.HandleFunc("POST "+agent.PathHello, s.hello)
	s.mux.HandleFunc("POST "+agent.PathExec, s.exec)
	s.mux.HandleFunc("POST "+agent.PathDial, s.dial)
	s.mux.HandleFunc("POST "+agent.PathListen, s.listen)
	s.mux.HandleFunc("POST "+agent.PathAccept, s.accept)
	s.mux.HandleFunc("POST "+agent.PathFiles, s.files)
	s.mux.HandleFunc("POST "+agent.PathUnpack, s.unpack)
	s.mux.HandleFunc("POST "+agent.PathPorts, s.listPorts)
	s.mux.HandleFunc("POST "+agent.PathUsage, s.usage)
	s.mux.HandleFunc("GET "+agent.PathSetup, s.setupStatus)
	s.mux.HandleFunc("POST "+agent.PathSetup, s.takeSetup)
	s.mux.HandleFunc("POST "+agent.PathRetry, s.retrySetup)
	s.mux.HandleFunc("POST "+agent.PathSteps, s.runStep)
	s.mux.HandleFunc("GET "+agent.PathDescriptions, s.descriptions)
	s.mux.HandleFunc("GET "+agent.PathContext, s.buildContext)
	s.mux.HandleFunc("POST "+agent.PathGit, s.takeGit)
	return s
}

// Serve serves on l until it is closed. A request that is not read within some
// seconds loses its connection.
func (s *Server) Serve(l net.Listener) error {
	defer s.holdAwake()()
	defer s.serveSSH()()
	srv := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug)}
	return srv.Serve(l)
}

// ServeHTTP answers a request that carries the secret.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given := []byte(r.Header.Get("Authorization"))
	if s.cfg.Secret == "" || subtle.ConstantTimeCompare(given, []byte("Bearer "+s.cfg.Secret)) != 1 {
		refuse(w, http.StatusUnauthorized, errors.New("the secret is wrong"))
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) hello(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, agent.Hello{Version: agent.Version, Oldest: agent.Oldest, Codehub: s.cfg.Version})
}

func respond(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // the logs of a setup would be six times as long
	_ = encoder.Encode(v)
}

func refuse(w http.ResponseWriter, status int, err error) {
	respond(w, status, agent.Problem{Message: err.Error()})
}

// converse takes the connection over and answers 101. On failure it has answered.
func (s *Server) converse(w http.ResponseWriter, r *http.Request) (*net.TCPConn, bool) {
	if r.Header.Get("Upgrade") != agent.Upgrade {
		refuse(w, http.StatusUpgradeRequired, errors.New("the request needs the header Upgrade: "+agent.Upgrade))
		return nil, false
	}
	raw, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return nil, false
	}
	conn, ok := raw.(*net.TCPConn)
	if !ok || buf.Reader.Buffered() > 0 { // the client waits for the 101
		raw.Close()
		return nil, false
	}
	_ = conn.SetDeadline(time.Time{})
	head := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + agent.Upgrade + "\r\n\r\n"
	if _, err := conn.Write([]byte(head)); err != nil {
		conn.Close()
		return nil, false
	}
	return conn, true
}
