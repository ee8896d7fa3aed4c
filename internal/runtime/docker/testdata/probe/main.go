// Command probe tries from inside a container what a workspace may and may not do.
// As a helper or a storage job it gets their arguments first and ignores them.
//
//	probe calls                       tries system calls and prints what each returned
//	probe flows KIND ADDR N HOLD      opens N flows to ADDR (host:port), prints how many
//	                                  an answer came back on, and keeps them open for HOLD
//	probe take N HOLD                 takes N of each of the user's kernel resources, and
//	                                  prints how many it got
//	probe id                          prints the user and what it can write
//	probe env                         prints the environment
//	probe write PATH                  prints the error of writing to a file
//	probe linger D                    ignores signals that would end it, for D
//	probe orphans N D                 leaves N processes that end after D
//	probe attack PID                  attacks the agent, its volume and the process, and
//	                                  prints what came of it
//	probe environs                    prints the environments of all processes
//	probe send PID SIGNAL             sends a signal
//	probe connect ADDR SECRET         asks an agent who it is
//	probe forge KIND                  replaces the socket of commands that hold a workspace
//	                                  awake, by none, a file, a link, or an endless answer
//	probe chatter PATH                answers on a socket without end
//	probe fill DIR                    fills the disk
//	probe freeze                      stops process 1 by tracing it
//	probe breed D                     starts processes until D has passed
//	probe trusts CERT KEY HOW         prints the error of connecting to an https server with
//	                                  this certificate, HOW with or without variables
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

var commands = map[string]func(args []string) (any, time.Duration){
	"calls": func([]string) (any, time.Duration) { return calls(), 0 },
	"flows": flows,
	"take":  take,
	"id":    func([]string) (any, time.Duration) { return identity(), 0 },
	"env":   func([]string) (any, time.Duration) { return os.Environ(), 0 },
	"write": func(args []string) (any, time.Duration) {
		return fmt.Sprint(os.WriteFile(args[0], []byte("x"), 0o755)), 0
	},
	"linger":  linger,
	"orphans": orphans,
	"attack":  attack, "environs": environs, "send": send, "connect": connect, "forge": forge, "chatter": chatter, "breed": breed, "fill": fill, "freeze": freeze, "trusts": trusts,
}

func trusts(args []string) (any, time.Duration) {
	if args[2] == "without" {
		os.Clearenv()
	}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err.Error(), 0
	}
	go func() { _ = http.ServeTLS(listener, http.NotFoundHandler(), args[0], args[1]) }()
	res, err := http.Get("https://" + listener.Addr().String())
	if err == nil {
		res.Body.Close()
	}
	return fmt.Sprint(err), 0
}

func linger(args []string) (any, time.Duration) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	d, err := time.ParseDuration(args[0])
	return fmt.Sprint(err), d
}

func orphans(args []string) (any, time.Duration) {
	n, err := strconv.Atoi(args[0])
	for i := 0; i < n && err == nil; i++ {
		err = exec.Command(os.Args[0], "linger", args[1]).Start()
	}
	return fmt.Sprint(err), 0
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "traced" {
		return
	}
	at := slices.IndexFunc(os.Args, func(arg string) bool { return commands[arg] != nil })
	if at < 0 {
		fmt.Fprintln(os.Stderr, "usage: probe calls | flows KIND ADDR N HOLD | take N HOLD | id | env | write PATH | linger D | orphans N D | attack PID | environs | send PID SIGNAL | connect ADDR SECRET | forge KIND | chatter PATH | breed D | fill DIR | freeze | trusts CERT KEY HOW")
		os.Exit(2)
	}
	answer, hold := commands[os.Args[at]](os.Args[at+1:])
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(hold)
}
