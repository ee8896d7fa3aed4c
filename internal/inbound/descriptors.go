package inbound

import (
	"math"

	"golang.org/x/sys/unix"
)

// Reserved descriptors are for the database, Docker, Redis, the bucket and files: a
// quarter of the process's limit, within these bounds.
const minReserved, maxReserved = 64, 512

// Capacity returns how many connections the process can have open: at most want, and
// so many that each can have a second descriptor, for its connection to a workspace,
// and the reserved ones remain. Go has already raised the process's soft limit.
func Capacity(want int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return want
	}
	return capacity(want, limit.Cur)
}

func capacity(want int, descriptors uint64) int {
	d := int(min(descriptors, math.MaxInt32))
	reserved := min(max(d/4, minReserved), maxReserved)
	return min(want, max((d-reserved)/2, 1))
}
