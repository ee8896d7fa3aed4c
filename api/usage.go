package api

import "time"

// Usage is what a running workspace uses of its limits. 0 for a limit means none.
type Usage struct {
	CPU         float64 `json:"cpu"` // processors, now
	CPULimit    float64 `json:"cpu_limit"`
	Memory      int64   `json:"memory"` // bytes
	MemoryLimit int64   `json:"memory_limit"`
	// Disk is the size of the home in bytes (null: it is not measured), DiskSize what it may use.
	Disk      *int64 `json:"disk"`
	DiskSize  int64  `json:"disk_size"`
	Processes int    `json:"processes"`
	// Holders are the commands that hold the workspace awake, the oldest first.
	Holders []Holder `json:"holders"`
}

// Holder is a command in a workspace that holds it awake.
type Holder struct {
	What  string    `json:"what"`
	Since time.Time `json:"since"`
}
