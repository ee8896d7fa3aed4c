package kubetest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Chart is the path of codehub's Helm chart.
func Chart() string {
	return filepath.Join(filepath.Dir(script()), "..", "deploy", "helm", "codehub")
}

// Helm runs helm without a cluster and returns its standard output. An error has what helm
// printed.
func Helm(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	return runTool(tb, nil, nil, "helm", args...)
}

// Helm runs helm on the cluster, as its administrator.
func (c *Cluster) Helm(args ...string) (string, error) {
	c.tb.Helper()
	return runTool(c.tb, []string{"KUBECONFIG=" + c.Kubeconfig}, nil, "helm", args...)
}

// Apply creates or updates the objects of a YAML file.
func (c *Cluster) Apply(manifest string) {
	c.tb.Helper()
	c.kubectl(manifest, "apply", "--filename", "-")
}

// Delete removes the objects of a YAML file.
func (c *Cluster) Delete(manifest string) {
	c.tb.Helper()
	c.kubectl(manifest, "delete", "--filename", "-")
}

func (c *Cluster) kubectl(input string, args ...string) {
	c.tb.Helper()
	if _, err := c.Kubectl(input, args...); err != nil {
		c.tb.Fatal(err)
	}
}

// Kubectl runs kubectl on the cluster, as its administrator, and returns its standard output. An
// error has what kubectl printed.
func (c *Cluster) Kubectl(input string, args ...string) (string, error) {
	c.tb.Helper()
	return runTool(c.tb, []string{"KUBECONFIG=" + c.Kubeconfig}, []byte(input), "kubectl", args...)
}

// toolError is a failed run of a program.
type toolError struct {
	command, output string
	err             error
}

func (e *toolError) Error() string { return e.command + ": " + e.err.Error() + ": " + e.output }

func runTool(tb testing.TB, env []string, input []byte, name string, args ...string) (string, error) {
	tb.Helper()
	bin, err := exec.Command(script(), "tools").Output()
	if err != nil {
		tb.Fatalf("kube.sh tools: %v", err)
	}
	cmd := exec.Command(filepath.Join(strings.TrimSpace(string(bin)), name), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = bytes.NewReader(input)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		return out.String(), &toolError{command: name + " " + strings.Join(args, " "), output: failed.String(), err: err}
	}
	return out.String(), nil
}
