package kube

import (
	"context"
	"testing"

	"codehub/internal/base/health"
	"codehub/internal/runtime/registry"
)

// A registry of codehub's images with a private address that no setting lists is a condition, as
// administrators read no log at level debug. One that a user has named is none.
func TestPrivateRegistryIsReported(t *testing.T) {
	t.Parallel()
	var conditions health.Monitor
	r := &Runtime{cfg: Config{Settings: Settings{ServerImage: "127.0.0.1:5000/codehub/server:1"}, IDEImage: "127.0.0.1:5000/codehub/ide:1"}}
	r.privateRegistry = conditions.New(health.Config{Name: "private-registry"})
	r.images = registries{
		client: registry.Client{HTTP: registry.Public(nil)}, logins: func(context.Context) map[string]registry.Login { return nil }, answered: r.answered,
	}
	for _, c := range []struct {
		ref    string
		failed bool
	}{{"10.0.0.1:5000/of-a-user:1", false}, {"127.0.0.1:5000/codehub/workspace:1", true}} {
		if _, err := r.images.resolve(t.Context(), c.ref); registry.KindOf(err) != registry.Private {
			t.Errorf("%s: %v", c.ref, err)
		}
		if failed := conditions.Err("private-registry") != nil; failed != c.failed {
			t.Errorf("after %s: %v", c.ref, conditions.Err("private-registry"))
		}
	}
	r.answered("127.0.0.1:5000", nil)
	if err := conditions.Err("private-registry"); err != nil {
		t.Errorf("after an answer: %v", err)
	}
}
