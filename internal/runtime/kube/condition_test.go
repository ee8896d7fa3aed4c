package kube

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"k8s.io/client-go/rest"

	"codehub/internal/base/health"
)

// The runtime reports a cluster that does not respond under the name that pages look for and
// docs/monitoring.md has.
func TestConditionOfClusterIsDocumented(t *testing.T) {
	t.Parallel()
	conditions := &health.Monitor{}
	r, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, Config{Installation: uuid.NewString(), Settings: Settings{Namespace: namespace}, Conditions: conditions})
	check(t, err)
	t.Cleanup(func() { _ = r.Close() })
	var names []string
	for _, s := range conditions.States() {
		names = append(names, s.Name)
	}
	if !slices.Contains(names, "docker") || slices.Contains(names, "engine") {
		t.Errorf("the conditions are %q", names)
	}
}
