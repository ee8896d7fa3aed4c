package embedded

import "testing"

// A killed process closes its files, and so releases the cluster's lock, before it becomes a
// zombie.
func TestDeadProcessIsDetected(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]bool{
		"7258 (postgres) S 1 7258 7258 0 -1 4194560 0 0": false,
		"7258 (a) Z (b) R 1 7258 7258 0 -1 4194560 0 0":  false,
		"7258 (postgres) Z 1 7258 7258 0 -1 4195652 0 0": true,
		"7258 (postgres) R 1 7258 7258 0 -1 4194564 0 0": true,
		"7258 (postgres)": false,
		"":                false,
	} {
		if got := statDead([]byte(stat)); got != want {
			t.Errorf("%q: %v, want %v", stat, got, want)
		}
	}
}
