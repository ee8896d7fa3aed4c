package kubetest

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Kubeconform checks manifests without a cluster.
type Kubeconform struct {
	tb               testing.TB
	program, schemas string
}

// Checked is what kubeconform found about a resource.
type Checked struct {
	Kind, Name, Version string
	Status              string // StatusValid, or another one
	Msg                 string // why it is not valid
}

// StatusValid is the status of a valid resource. A resource without a schema is not valid.
const StatusValid = "statusValid"

// NewKubeconform makes the schemas that manifests are checked against: those of all kinds of
// the Kubernetes that clusters of this package are, and of the custom resources that codehub's
// chart can create.
func NewKubeconform(tb testing.TB) *Kubeconform {
	tb.Helper()
	cmd := exec.Command(script(), "kubeconform")
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("kube.sh kubeconform: %v: %s", err, failed.String())
	}
	files := strings.Fields(string(out))
	k := &Kubeconform{tb: tb, program: files[0], schemas: tb.TempDir()}
	if err := writeSchemas(k.schemas, files[1], files[2:]...); err != nil {
		tb.Fatalf("make the schemas: %v", err)
	}
	return k
}

// Check checks the resources of a YAML file, in any order. Fields that the schemas do not
// have, and keys that occur twice, are errors.
func (k *Kubeconform) Check(manifests string) []Checked {
	k.tb.Helper()
	cmd := exec.Command(k.program, "-strict", "-verbose", "-output", "json",
		"-schema-location", filepath.Join(k.schemas, "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"))
	cmd.Stdin = strings.NewReader(manifests)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output() // an error if a resource is not valid
	var report struct{ Resources []Checked }
	if parse := json.Unmarshal(out, &report); parse != nil {
		k.tb.Fatalf("kubeconform: %v, %v: %s%s", err, parse, out, failed.String())
	}
	return report.Resources
}
