package inside

import (
	"strconv"
	"strings"
)

// gitWait is how long Git's credential helper waits for the server in a step of the setup: the
// server connects when it knows that the workspace runs, which is after the IDE listens.
const gitWait = "CODEHUB_GIT_WAIT=2m"

// withGit adds the workspace's credential helper to an environment. Git asks helpers of the user's
// own configuration before it.
func (s *Server) withGit(env []string) []string {
	if s.cfg.Program == "" {
		return env
	}
	return addGitConfig(env, "credential.helper", s.cfg.Program+" git-credential")
}

// addGitConfig adds an entry to the configuration that Git reads from the environment, after those
// that are there.
func addGitConfig(env []string, key, value string) []string {
	const name = "GIT_CONFIG_COUNT="
	n := 0
	for _, e := range env {
		if given, ok := strings.CutPrefix(e, name); ok {
			n, _ = strconv.Atoi(given) // Git refuses others than numbers
		}
	}
	at := strconv.Itoa(max(n, 0))
	return append(env, name+strconv.Itoa(max(n, 0)+1), "GIT_CONFIG_KEY_"+at+"="+key, "GIT_CONFIG_VALUE_"+at+"="+value)
}
