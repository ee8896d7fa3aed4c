// Command helper is the helper alone, small enough for tests to build, and
// storage jobs that do what a script says.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/runtime/docker"
	"codehub/internal/storage/storagejob"
	"codehub/internal/testing/runtimetest/script"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == runtime.JobCommand {
		os.Exit(job())
	}
	if len(os.Args) == 3 && os.Args[1] == "edit" {
		os.Exit(script.Run(context.Background(), []byte(os.Args[2]), runtime.JobHomeDir, "/none", os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == runtime.CopyCommand {
		os.Exit(storagejob.CopyMain())
	}
	if len(os.Args) > 1 && os.Args[1] == runtime.AgentCommand {
		os.Exit(inside.Main(os.Args[2:], "test"))
	}
	os.Exit(docker.HelperMain(os.Args[2:]))
}

func job() int {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return script.Run(context.Background(), input, runtime.JobHomeDir, runtime.JobObjectDir, os.Stdout, os.Stderr)
}
