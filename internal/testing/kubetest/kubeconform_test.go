package kubetest

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// kubeconform checks manifests without a cluster.
type kubeconform struct {
	tb               testing.TB
	program, schemas string
}

// checked is what kubeconform found about a resource.
type checked struct {
	Kind, Name, Version string
	Status              string // statusValid, or another one
	Msg                 string // why it is not valid
}

// statusValid is the status of a valid resource. A resource without a schema is not valid.
const statusValid = "statusValid"

// newKubeconform makes the schemas that manifests are checked against: those of all kinds of
// the Kubernetes that clusters of this package are, and of the custom resources that codehub's
// chart can create.
func newKubeconform(tb testing.TB) *kubeconform {
	tb.Helper()
	files := conformanceFiles(tb)
	k := &kubeconform{tb: tb, program: files[0], schemas: tb.TempDir()}
	if err := writeSchemas(k.schemas, files[1], files[2:]...); err != nil {
		tb.Fatalf("make the schemas: %v", err)
	}
	return k
}

// conformanceFiles returns the paths that kube.sh kubeconform prints.
func conformanceFiles(tb testing.TB) []string {
	tb.Helper()
	cmd := exec.Command(script(), "kubeconform")
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("kube.sh kubeconform: %v: %s", err, failed.String())
	}
	return strings.Fields(string(out))
}

// check returns one result for each resource of a YAML file, in no particular order. Fields that the schemas do not
// have, and keys that occur twice, are errors.
func (k *kubeconform) check(manifests string) []checked {
	k.tb.Helper()
	cmd := exec.Command(k.program, "-strict", "-verbose", "-output", "json",
		"-schema-location", filepath.Join(k.schemas, "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"))
	cmd.Stdin = strings.NewReader(manifests)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output() // an error if a resource is not valid
	var report struct{ Resources []checked }
	if parse := json.Unmarshal(out, &report); parse != nil {
		k.tb.Fatalf("kubeconform: %v, %v: %s%s", err, parse, out, failed.String())
	}
	return report.Resources
}
