//go:build race

package proxy

// memoryFactor allows for what the race detector allocates.
const memoryFactor = 2
