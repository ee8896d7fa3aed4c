//go:build !race

package proxy

const memoryFactor = 1
