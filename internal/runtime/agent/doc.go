// Package agent is how the server talks to the agent of a workspace: `codehub
// agent`, the first process in the workspace's container (package inside).
//
// The agent speaks HTTP/1.1 on one port. Every request carries the container's
// secret. What is a conversation rather than an answer (a command, a connection,
// files) begins as a request that the agent answers with 101, after which the
// connection belongs to it: as plain bytes, or as frames (see Frame).
package agent

// The version of the protocol. An agent outlives updates of the server until its
// workspace stops, so a server talks to agents of the version before. docs/agent.md says
// which changes need a new version.
const (
	Version = 1
	// Oldest is the oldest version that a server of this version talks to.
	Oldest = 1
)

// The paths of the agent's requests.
const (
	PathHello  = "/v1/hello" // the same in all versions
	PathExec   = "/v1/exec"
	PathDial   = "/v1/dial"
	PathListen = "/v1/listen"
	PathAccept = "/v1/accept"
	PathFiles  = "/v1/files"
	PathPorts  = "/v1/ports"
	PathUsage  = "/v1/usage"
)

// ClientSocket is where agents listen for the command line in the workspace (PathListen), while
// a server asks them to. Only the workspace's user may enter the folder.
const ClientSocket = "/tmp/.codehub/client.sock"

// Upgrade is the protocol that a conversation's request names.
const Upgrade = "codehub-agent"

// Hello is what the agent says about itself.
type Hello struct {
	Version int    `json:"version"` // the newest version of the protocol that it speaks
	Oldest  int    `json:"oldest"`  // the oldest
	Codehub string `json:"codehub"` // the version of its executable
}

// Command is a command to run in the workspace.
type Command struct {
	// Args is the program and its arguments. If it is empty, Shell runs.
	Args []string `json:"args,omitempty"`
	// Shell is a command line for the user's login shell, as sshd runs it; with
	// neither Args nor Shell the login shell itself runs, interactively.
	Shell string `json:"shell,omitempty"`
	// Env is added to the workspace's environment: "NAME=value".
	Env []string `json:"env,omitempty"`
	// Dir is the folder that it begins in; relative paths begin at the home. Empty:
	// the home.
	Dir string `json:"dir,omitempty"`
	// Terminal gives the command a terminal; nil: pipes.
	Terminal *Terminal `json:"terminal,omitempty"`
}

// Terminal is a command's terminal.
type Terminal struct {
	Name string `json:"name"` // the value of TERM
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
	// Modes are the terminal modes of RFC 4254, section 8, by opcode.
	Modes map[uint8]uint32 `json:"modes,omitempty"`
}

// Exit is how a command ended.
type Exit struct {
	Code   int    `json:"code"`             // its exit code; 128 and the signal's number if a signal ended it
	Signal string `json:"signal,omitempty"` // the signal that ended it, without SIG: "TERM"
	Core   bool   `json:"core,omitempty"`   // a core was dumped
}

// Port is a TCP port on which a process of the workspace listens.
type Port struct {
	Port int `json:"port"`
	// Local: it listens on a loopback address alone.
	Local bool `json:"local,omitempty"`
	// Process is the command line's program and PID its process; empty and 0 if it
	// belongs to another user.
	Process string `json:"process,omitempty"`
	PID     int    `json:"pid,omitempty"`
	// Since is when the agent first saw it, in seconds since 1970. An agent looks
	// only when it is asked.
	Since int64 `json:"since,omitempty"`
}

// Ports is the answer to a request for the listening ports.
type Ports struct {
	Ports []Port `json:"ports"` // by number, without the IDE's and the agent's own
}

// Usage is what the workspace uses of its limits. 0 for a limit means none, and
// for anything else that it is unknown.
type Usage struct {
	CPUSeconds  float64 `json:"cpu_seconds"` // processor time since the container started
	CPULimit    float64 `json:"cpu_limit"`   // processors
	Memory      int64   `json:"memory"`      // bytes, without what the kernel can drop
	MemoryLimit int64   `json:"memory_limit"`
	Disk        int64   `json:"disk"` // bytes used on the file system of the home
	DiskSize    int64   `json:"disk_size"`
	Processes   int     `json:"processes"`
	// Holders are the commands that hold the workspace awake, the oldest first.
	Holders []Holder `json:"holders,omitempty"`
}

// Holder is a command that holds the workspace awake.
type Holder struct {
	What  string `json:"what"`  // "make test"
	Since int64  `json:"since"` // seconds since 1970
}

// Listening is the agent's first message on a listen conversation, and Accepted
// each further one: a connection that waits to be fetched with PathAccept.
type Listening struct {
	Address string `json:"address"` // where it listens
}

// Accepted is a connection to a listener.
type Accepted struct {
	ID     string `json:"id"`
	Remote string `json:"remote"` // the peer's address; "@" for a socket
}

// Problem is the body of an answer with an error.
type Problem struct {
	Message string `json:"message"`
}
