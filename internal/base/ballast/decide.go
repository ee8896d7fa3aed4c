package ballast

import "fmt"

// Disk is what is free on a disk, for users other than root.
type Disk struct {
	Free, Total      int64 // bytes
	FreeNodes, Nodes int64 // inodes; Nodes is 0 on a file system without a limit
}

const (
	// lowBytes and lowNodes are what deletions and the embedded database may need
	// before the ballast is given up.
	lowBytes = 16 << 20
	lowNodes = 64
	// nodes is how many inodes the ballast keeps in reserve.
	nodes = 256
)

// low is the number of free bytes below which a disk is full. A small ballast is for a
// small disk.
func low(size int64) int64 {
	if size <= 0 {
		return lowBytes
	}
	return min(lowBytes, size/4)
}

// full reports whether the ballast has to be given up.
func full(d Disk, size int64) bool {
	return d.Free < low(size) || d.Nodes > 0 && d.FreeNodes < lowNodes
}

// fits reports whether the ballast can be made, with as much to spare as keeps it from
// being given up at once.
func fits(d Disk, size int64) bool {
	return d.Free-size >= 2*low(size) && (d.Nodes == 0 || d.FreeNodes-nodes >= 2*lowNodes)
}

// action is what to do with the ballast.
type action int

const (
	leave action = iota
	remove
	create
)

func decide(d Disk, kept bool, size int64) action {
	switch {
	case kept && full(d, size):
		return remove
	case !kept && size > 0 && fits(d, size):
		return create
	}
	return leave
}

// trouble describes a disk that is full, or too full for the ballast; empty: it is not.
func trouble(d Disk, kept bool, size int64) string {
	free := fmt.Sprintf("%d MiB", d.Free>>20)
	if d.Nodes > 0 {
		free += fmt.Sprintf(" and %d inodes", d.FreeNodes)
	}
	switch {
	case size > 0 && !kept:
		return fmt.Sprintf("the disk of the data folder is full: %s are free, and the ballast of %d MiB and %d inodes is given up or was never made; remove something, or enlarge the disk",
			free, size>>20, nodes)
	case size == 0 && full(d, size):
		return fmt.Sprintf("the disk of the data folder is full: %s are free; remove something, or enlarge the disk", free)
	}
	return ""
}
