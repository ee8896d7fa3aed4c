package kubetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Registry gives nodes and Pods access to a registry without TLS that listens on this machine's
// loopback. It returns the registry's name on the nodes.
func (c *Cluster) Registry(to string) string {
	c.tb.Helper()
	host := c.Forward(to)
	text := fmt.Sprintf("server = \"http://%[1]s\"\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", host)
	for _, node := range c.nodes() {
		dir := filepath.Join(node, "certs.d", host)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			c.tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
			c.tb.Fatal(err)
		}
	}
	return host
}

// TakeImage removes the image with a digest, that of its manifest or its configuration, from
// all nodes.
func (c *Cluster) TakeImage(digest string) {
	c.tb.Helper()
	for _, node := range c.nodes() {
		ctr := func(args ...string) string {
			out, err := exec.Command("ctr", append([]string{"-a", filepath.Join(node, "containerd.sock"), "-n", "k8s.io", "images"}, args...)...).CombinedOutput()
			if err != nil {
				c.tb.Fatalf("ctr images %s: %v: %s", strings.Join(args, " "), err, out)
			}
			return string(out)
		}
		// Name, type, digest and more: all names of the image go.
		target, names := "", map[string][]string{}
		for line := range strings.Lines(ctr("ls")) {
			if f := strings.Fields(line); len(f) > 3 {
				names[f[2]] = append(names[f[2]], f[0])
				if f[2] == digest || f[0] == digest {
					target = f[2]
				}
			}
		}
		if target != "" {
			ctr(append([]string{"rm", "--sync"}, names[target]...)...)
		}
	}
}

// nodes returns the folders with the state of the nodes.
func (c *Cluster) nodes() []string {
	c.tb.Helper()
	list, err := filepath.Glob(filepath.Join(c.dir(), "node*", "containerd.sock"))
	if err != nil {
		c.tb.Fatal(err)
	}
	for i := range list {
		list[i] = filepath.Dir(list[i])
	}
	return list
}
