package inbound

import (
	"math"

	"golang.org/x/sys/unix"
)

// Reserved descriptors are for the database, Docker, Redis, the bucket and files: a
// quarter of the process's limit, within these bounds.
const minReserved, maxReserved = 64, 512

// sshShare is the share of the other descriptors that SSH gets.
const sshShare = 4

// Capacity divides the process's descriptors. It returns how many connections of HTTP
// clients the process can have open, at most connections: each can have a second
// descriptor, for its connection to a workspace. And it returns how many descriptors SSH
// can have, at most ssh. Go has already raised the process's soft limit.
func Capacity(connections, ssh int) (forHTTP, forSSH int) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return connections, ssh
	}
	return capacity(connections, ssh, limit.Cur)
}

func capacity(connections, ssh int, descriptors uint64) (forHTTP, forSSH int) {
	d := int(min(descriptors, math.MaxInt32))
	free := d - min(max(d/4, minReserved), maxReserved)
	forSSH = min(ssh, max(free/sshShare, 1))
	return min(connections, max((free-forSSH)/2, 1)), forSSH
}
