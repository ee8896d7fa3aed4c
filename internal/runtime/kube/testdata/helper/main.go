// Command helper is what the Pods of this package's tests run: the agent, the helper of
// Pods, and storage jobs that do what a script says.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"

	"codehub/internal/base/trust"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/runtime/kube/copytree"
	"codehub/internal/runtime/kube/enter"
	helper "codehub/internal/runtime/kube/inside"
	"codehub/internal/storage/storagejob"
	"codehub/internal/testing/runtimetest/script"
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
	case "whoami":
		os.Exit(whoami())
	case enter.Command:
		os.Exit(enter.Main(os.Args[2:]))
	case trust.Command:
		os.Exit(trust.Main(os.Args[2:]))
	case copytree.Command:
		os.Exit(copytree.Main(os.Args[2:]))
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

// whoami prints what the system says of the user.
func whoami() int {
	me, err := user.Current()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	group, err := user.LookupGroupId(me.Gid)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	env := map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	var effective, hostRoot int
	capabilities, users := "", ""
	if text, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		_, _ = fmt.Sscan(strings.Fields(string(text))[1], &hostRoot)
	}
	if text, err := os.ReadFile("/proc/self/status"); err == nil {
		_, rest, _ := strings.Cut(string(text), "CapEff:\t")
		capabilities, _, _ = strings.Cut(rest, "\n")
	}
	effective = os.Geteuid()
	// As programs do that add users.
	if err := errors.Join(os.WriteFile("/etc/passwd+", nil, 0o644), os.Rename("/etc/passwd+", "/etc/passwd")); err != nil {
		users = err.Error()
	}
	temp := ""
	if err := os.WriteFile("/tmp/it", nil, 0o600); err != nil {
		temp = err.Error()
	}
	var lists []string // of trusted authorities
	for _, name := range append(slices.Clone(trust.Bundles), trust.BundlePath) {
		text, _ := os.ReadFile(name)
		lists = append(lists, string(text))
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"Name": me.Username, "Home": me.HomeDir, "Group": group.Name, "Env": env, "Temp": temp, "UID": os.Getuid(), "Effective": effective, "HostRoot": hostRoot, "Capabilities": capabilities, "Users": users, "Lists": lists}); err != nil {
		return 1
	}
	return 0
}
