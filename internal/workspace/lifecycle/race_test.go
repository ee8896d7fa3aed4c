//go:build race

package lifecycle_test

// The rules are pure functions, and the race detector makes the tests six times as long.
func init() { everyNth = thinned }
