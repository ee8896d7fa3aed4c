// Command probe tries from inside a container what a workspace may and may not do.
// As a helper or a storage job it gets their arguments first and ignores them.
//
//	probe calls                       tries system calls and prints what each returned
//	probe flows KIND ADDR N HOLD      opens N flows to ADDR (host:port), prints how many
//	                                  an answer came back on, and keeps them open for HOLD
//	probe take N HOLD                 takes N of each of the user's kernel resources, and
//	                                  prints how many it got
//	probe id                          prints the user and what it can write
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

var commands = map[string]func(args []string) (any, time.Duration){
	"calls": func([]string) (any, time.Duration) { return calls(), 0 },
	"flows": flows,
	"take":  take,
	"id":    func([]string) (any, time.Duration) { return identity(), 0 },
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "traced" {
		return
	}
	at := slices.IndexFunc(os.Args, func(arg string) bool { return commands[arg] != nil })
	if at < 0 {
		fmt.Fprintln(os.Stderr, "usage: probe calls | flows KIND ADDR N HOLD | take N HOLD | id")
		os.Exit(2)
	}
	answer, hold := commands[os.Args[at]](os.Args[at+1:])
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(hold)
}
