package tools

import (
	"context"
	"strings"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/helper"
)

// The first process of every workspace is codehub's agent, which no image has to bring. It is
// on a volume for each version of it; see volume.

const (
	agentDir  = account.AgentDir
	agentFile = account.AgentFile
	agentPath = agentDir + "/" + agentFile
)

// AgentEntrypoint precedes the command that starts the IDE.
var AgentEntrypoint = []string{agentPath, runtime.AgentCommand, "--"}

// Agent returns the complete volume and the digest of the executable on
// it.
func (t *Tools) Agent(ctx context.Context) (name, digest string, err error) {
	if name, digest = t.agent.known(); name != "" {
		return name, digest, nil
	}
	if _, err := t.helper.Image(ctx); err != nil {
		return "", "", err
	}
	if digest = t.cfg.AgentDigest; digest == "" {
		digest = t.helper.Digest()
	}
	name, err = t.fillOnce(ctx, &t.agent, digest, helper.Run{Args: []string{helper.CmdInstallAgent, fillDir, digest}})
	return name, digest, err
}

// AgentMissing reports whether a container could not be started because the
// executable was not on its volume.
func AgentMissing(err error) bool { return strings.Contains(err.Error(), agentPath) }
