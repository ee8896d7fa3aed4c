// Command helper is the helper alone, small enough for tests to build.
package main

import (
	"os"

	"codehub/internal/runtime/docker"
)

func main() { os.Exit(docker.HelperMain(os.Args[2:])) }
