package secrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// What a workspace gets at most, of all its owner's groups too; further secrets are left out. The
// kernel starts no program with more variables.
const (
	maxDelivered = 4 << 20
	maxVariables = 1 << 20
	maxFiles     = agent.MaxFiles / 2 // others add files as well
)

// Deliver adds the secrets of a workspace to its setup. What cannot be delivered becomes a step that
// fails, so that the workspace starts without it.
func (s *Service) Deliver(ctx context.Context, row workspace.Workspace, setup *agent.Setup) error {
	list, err := s.store.LaunchSecrets(ctx, row.ID)
	if err != nil || len(list) == 0 {
		return err
	}
	var failed []string
	size, variables := 0, 0
	for _, secret := range slices.Backward(list) { // the later one counts
		bytes, env := len(secret.Value), 0
		if secret.Env != "" {
			env = bytes
			if secret.File != "" {
				bytes *= 2 // it is sent twice
			}
		}
		if size+bytes > maxDelivered || variables+env > maxVariables || secret.File != "" && len(setup.Files) >= maxFiles {
			failed = append(failed, fmt.Sprintf("The secret %s was left out: there are too many, or their values are too long together.", secret.Name))
			continue
		}
		size, variables = size+bytes, variables+env
		plain, err := s.keys.Open(secret.Value, secret.Owner)
		if err != nil {
			failed = append(failed, fmt.Sprintf("The secret %s cannot be decrypted: %s.", secret.Name, words(err)))
			continue
		}
		s.add(setup, secret, plain)
	}
	if len(failed) > 0 {
		slices.Reverse(failed)
		setup.Steps = append(setup.Steps, agent.Step{Name: "secrets", Fail: strings.Join(failed, "\n")})
	}
	return nil
}

// add adds a secret to the setup, unless another one precedes it.
func (s *Service) add(setup *agent.Setup, secret postgres.LaunchSecret, plain []byte) {
	if _, taken := setup.Env[secret.Env]; secret.Env != "" && !taken {
		if setup.Env == nil {
			setup.Env = map[string]string{}
		}
		text := Variable(plain)
		setup.Env[secret.Env] = string(text)
		clear(text)
	}
	at := strings.TrimPrefix(secret.File, "~/")
	if secret.File != "" && !slices.ContainsFunc(setup.Files, func(f agent.File) bool { return f.Path == at }) {
		setup.Files = append(setup.Files, agent.File{Path: at, Content: plain})
		return
	}
	clear(plain)
}

// words is why a value cannot be decrypted, for the owner of the workspace: without the server's
// paths.
func words(err error) string {
	var coded *workspace.Error
	if errors.As(err, &coded) {
		return strings.TrimSuffix(coded.Message, ".")
	}
	return "its key is missing, or the value was changed"
}
