package lifecycle

import (
	"testing"

	"codehub/internal/workspace"
)

// The variables of a container are compared without its secrets, which others compare.
func TestEnvWaitsIgnoresSecrets(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "1"}
	running := workspace.Conditions{workspace.ContainerReady: {Status: "True", Reason: workspace.ReasonContainerReady}}
	for _, secrets := range []string{"", "0123456789abcdef01234567"} {
		for _, before := range []map[string]string{nil, env} {
			w := workspace.Workspace{Env: env, RunningEnv: LaunchDigest(before, secrets), Conditions: running}
			if waits := EnvWaits(w); waits != (before == nil) {
				t.Errorf("started with %v and the secrets %q, waits: %v", before, secrets, waits)
			}
			if len(w.RunningEnv) > 64 {
				t.Errorf("%q does not fit into the column", w.RunningEnv)
			}
		}
	}
}
