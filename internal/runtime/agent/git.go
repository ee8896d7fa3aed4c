package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// PathGit is where the agent takes a Git (POST), as often as it changes.
const PathGit = "/v1/git"

// SSHSocket is where an agent serves the protocol of ssh-agent: the key of Git, for the workspace's
// user alone.
const SSHSocket = "/tmp/.codehub/ssh-agent.sock"

// GitHubClient and GitLabClient are programs that an agent starts with the token of the host that
// they talk to: codehub by their names is before them on the PATH.
const (
	GitHubClient = "gh"
	GitLabClient = "glab"
)

// MaxSignedData is how many bytes a program can have signed at once.
const MaxSignedData = 16 << 10

// MaxGit is the size of a Git as JSON, in bytes.
const MaxGit = 16 << 10

// Git is what git and ssh in a workspace have of the workspace's owner.
type Git struct {
	// Name and Email are the default author of commits; empty: none.
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
	// Key is the public key that the agent's socket offers, as in authorized_keys; empty: none. The
	// server has the private key, and signs.
	Key string `json:"key,omitempty"`
	// Sign: commits and tags are signed with Key.
	Sign bool `json:"sign,omitempty"`
	// Refused is why the owner's key is not offered, for people.
	Refused string `json:"refused,omitempty"`
}

// SetGit tells the agent what git and ssh have, in the place of the former.
func (c *Client) SetGit(ctx context.Context, g Git) error {
	body, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("encode the git settings: %w", err)
	}
	var answer struct{}
	return c.ask(ctx, http.MethodPost, PathGit, body, maxAnswer, &answer)
}
