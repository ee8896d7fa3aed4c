package docker

import (
	"context"
	"strings"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/helper"
)

// The first process of every workspace is codehub's agent, which no image has to bring. It is
// on a volume for each version of it; see toolVolume.

const (
	agentDir  = account.AgentDir
	agentFile = account.AgentFile
	agentPath = agentDir + "/" + agentFile
)

// agentEntrypoint precedes the command that starts the IDE.
var agentEntrypoint = []string{agentPath, runtime.AgentCommand, "--"}

// ensureAgentVolume returns the complete volume and the digest of the executable on
// it.
func (r *Runtime) ensureAgentVolume(ctx context.Context) (name, digest string, err error) {
	if name, digest = r.agent.known(); name != "" {
		return name, digest, nil
	}
	if _, err := r.helper.Image(ctx); err != nil {
		return "", "", err
	}
	if digest = r.cfg.AgentDigest; digest == "" {
		digest = r.helper.Digest()
	}
	name, err = r.fillOnce(ctx, &r.agent, digest, helper.Run{Args: []string{helper.CmdInstallAgent, fillDir, digest}})
	return name, digest, err
}

// agentMissing reports whether a container could not be started because the
// executable was not on its volume.
func agentMissing(err error) bool { return strings.Contains(err.Error(), agentPath) }
