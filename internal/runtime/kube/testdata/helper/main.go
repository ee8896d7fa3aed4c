// Command helper is what the Pods of this package's tests run: the agent, the helper of
// Pods, and storage jobs that do what a script says.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"codehub/internal/agent/inside"
	"codehub/internal/runtime"
	helper "codehub/internal/runtime/kube/inside"
	"codehub/internal/runtime/runtimetest/script"
	"codehub/internal/storagejob"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	switch os.Args[1] {
	case runtime.JobCommand:
		os.Exit(job())
	case runtime.CopyCommand:
		os.Exit(storagejob.CopyMain())
	case runtime.AgentCommand:
		os.Exit(inside.Main(os.Args[2:], "test"))
	case helper.Command:
		os.Exit(helper.Main(os.Args[2:]))
	}
	os.Exit(2)
}

func job() int {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if bytes.HasPrefix(input, []byte("{")) { // the instructions of a real job
		return storagejob.Run(context.Background(), bytes.NewReader(input), os.Stdout, storagejob.Mounted())
	}
	return script.Run(context.Background(), input, runtime.JobHomeDir, runtime.JobObjectDir, os.Stdout, os.Stderr)
}
