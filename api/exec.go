package api

// Exec is the first message of a client on the WebSocket of exec: the command to
// run. Without Args and Shell, the user's login shell runs.
type Exec struct {
	Args  []string `json:"args,omitempty"`  // the program and its arguments
	Shell string   `json:"shell,omitempty"` // a command line for the login shell
	Env   []string `json:"env,omitempty"`   // NAME=value, added to the workspace's
	// Dir is the folder that the command begins in, relative to the home; empty: the
	// home.
	Dir      string        `json:"dir,omitempty"`
	Terminal *ExecTerminal `json:"terminal,omitempty"` // nil: no terminal
	// Window is how many bytes of output the server sends before the client has
	// acknowledged them; 0: it waits for no acknowledgements.
	Window int `json:"window,omitempty"`
}

// ExecTerminal is the terminal of a command.
type ExecTerminal struct {
	Name string `json:"name"` // TERM
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// The types of an ExecInput.
const (
	ExecResize = "resize" // Rows and Cols
	ExecSignal = "signal" // Signal
	ExecEnd    = "end"    // the end of the standard input
	ExecAck    = "ack"    // Bytes of output were taken
)

// ExecInput is each further text message of a client. Binary messages are the
// command's standard input.
type ExecInput struct {
	Type   string `json:"type"`
	Rows   uint16 `json:"rows,omitempty"`
	Cols   uint16 `json:"cols,omitempty"`
	Signal string `json:"signal,omitempty"` // without SIG: INT
	Bytes  int    `json:"bytes,omitempty"`
}

// The types of an ExecOutput.
const (
	ExecProgress  = "progress"  // Workspace: it is being started
	ExecStarted   = "started"   // the command runs
	ExecHeartbeat = "heartbeat" // nothing; it keeps the connection open
	ExecExit      = "exit"      // Code and Signal; the last message
	ExecError     = "error"     // Error; the last message
)

// The first byte of a binary message of the server says which output follows.
const (
	ExecStdout = 1
	ExecStderr = 2
)

// ExecOutput is a text message of the server.
type ExecOutput struct {
	Type      string     `json:"type"`
	Workspace *Workspace `json:"workspace,omitempty"`
	Code      *int       `json:"code,omitempty"`   // the exit code; 128 and the signal's number after a signal
	Signal    string     `json:"signal,omitempty"` // the signal that ended the command, without SIG
	Error     *Error     `json:"error,omitempty"`
}
