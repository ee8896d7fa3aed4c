//go:build race

package lifecycle_test

// everyNth thins the exhaustive tests: the rules are pure functions, and the race
// detector makes the tests six times as long. make test also runs this package
// without it, in full.
const everyNth = 16
