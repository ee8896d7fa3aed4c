package helper

import (
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/seccomp"
)

// Confined is a container in which codehub's own executable works on a home. It
// has no network, a read-only root and no capabilities except Caps.
type Confined struct {
	Name, Image     string
	Entrypoint, Cmd []string
	Env             []string
	Labels          map[string]string
	Caps            []string
	Mounts          []mount.Mount
	Limits          Limits
	MappedUsers     bool // it sees the owners that workspaces see, also where Docker maps them
	Stdin           bool // it reads its instructions from standard input
}

// Limits are what a confined container may use. Its memory includes the files
// that it writes; GoMemory is the part for the executable's own heap.
type Limits struct {
	Memory      int64 // in bytes
	GoMemory    string
	Pids        int64
	BlockWeight uint16 // of its reads and writes, 10 to 1000; 0: as other containers
}

// Options returns the complete configuration of the container.
func (c Confined) Options() client.ContainerCreateOptions {
	users := container.UsernsMode("host")
	if c.MappedUsers {
		users = ""
	}
	var resources container.Resources
	if c.Limits != (Limits{}) {
		resources = container.Resources{
			Memory: c.Limits.Memory, MemorySwap: c.Limits.Memory, PidsLimit: &c.Limits.Pids, CPUShares: JobCPUShares, BlkioWeight: c.Limits.BlockWeight,
		}
	}
	return client.ContainerCreateOptions{
		Name: c.Name,
		Config: &container.Config{
			Image:           c.Image,
			Entrypoint:      c.Entrypoint,
			Cmd:             c.Cmd,
			User:            "0:0",
			Env:             append([]string{"GOMEMLIMIT=" + c.Limits.GoMemory}, c.Env...),
			OpenStdin:       c.Stdin,
			StdinOnce:       c.Stdin,
			Labels:          c.Labels,
			Healthcheck:     &container.HealthConfig{Test: []string{"NONE"}},
			NetworkDisabled: true,
		},
		HostConfig: &container.HostConfig{
			NetworkMode:    engine.NoNetwork,
			UsernsMode:     users,
			CapDrop:        []string{"ALL"},
			CapAdd:         c.Caps,
			ReadonlyRootfs: true,
			SecurityOpt:    []string{seccomp.Option(), "no-new-privileges:true"},
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			// What a job reports is read from its beginning when a server resumes
			// the job, so it must not be rotated. A job prints a few lines per second.
			LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": jobLogMax}},
			Mounts:    c.Mounts,
			Resources: resources,
		},
	}
}

const (
	JobCPUShares = 256 // of each confined container with limits; a workspace has 1024
	jobLogMax    = "100g"
)

// JobLimits are those of a storage job. Go's memory stays well below the limit,
// which includes the page cache; the kernel reclaims that first.
func JobLimits() Limits { return Limits{Memory: 512 << 20, GoMemory: "220MiB", Pids: 256} }

// BackgroundLimits are those of a storage job that disturbs workspaces as little as possible: the
// lowest weight of reads and writes that Docker accepts. With fewer shares of the processor it
// would start too slowly on a busy machine, and might never end.
func BackgroundLimits() Limits {
	limits := JobLimits()
	limits.BlockWeight = 10
	return limits
}
