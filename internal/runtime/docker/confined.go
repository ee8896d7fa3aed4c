package docker

import (
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/seccomp"
)

// confined is a container in which codehub's own executable works on a home. It
// has no network, a read-only root and no capabilities except caps.
type confined struct {
	name, image     string
	entrypoint, cmd []string
	labels          map[string]string
	caps            []string
	mounts          []mount.Mount
	limits          limits
	mappedUsers     bool // it sees the owners that workspaces see, also where Docker maps them
	stdin           bool // it reads its instructions from standard input
}

// limits are what a confined container may use. Its memory includes the files
// that it writes; goMemory is the part for the executable's own heap.
type limits struct {
	memory   int64 // in bytes
	goMemory string
	pids     int64
}

func (c confined) options() client.ContainerCreateOptions {
	users := container.UsernsMode("host")
	if c.mappedUsers {
		users = ""
	}
	return client.ContainerCreateOptions{
		Name: c.name,
		Config: &container.Config{
			Image:           c.image,
			Entrypoint:      c.entrypoint,
			Cmd:             c.cmd,
			User:            "0:0",
			Env:             []string{"GOMEMLIMIT=" + c.limits.goMemory},
			OpenStdin:       c.stdin,
			StdinOnce:       c.stdin,
			Labels:          c.labels,
			Healthcheck:     &container.HealthConfig{Test: []string{"NONE"}},
			NetworkDisabled: true,
		},
		HostConfig: &container.HostConfig{
			NetworkMode:    engine.NoNetwork,
			UsernsMode:     users,
			CapDrop:        []string{"ALL"},
			CapAdd:         c.caps,
			ReadonlyRootfs: true,
			SecurityOpt:    []string{seccomp.Option(), "no-new-privileges:true"},
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			// What a job reports is read from its beginning when a server resumes
			// the job, so it must not be rotated. A job prints a few lines per second.
			LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": jobLogMax}},
			Mounts:    c.mounts,
			Resources: container.Resources{
				Memory: c.limits.memory, MemorySwap: c.limits.memory, PidsLimit: &c.limits.pids, CPUShares: jobCPUShares,
			},
		},
	}
}
