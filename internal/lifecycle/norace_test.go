//go:build !race

package lifecycle_test

// everyNth is 1: the exhaustive tests are exhaustive.
const everyNth = 1
