package inside

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"codehub/internal/runtime/agent"
)

// gitWait is how long Git's credential helper waits for the server in a step of the setup: the
// server connects when it knows that the workspace runs, which is after the IDE listens.
const gitWait = "CODEHUB_GIT_WAIT=2m"

// withGit adds the workspace's credential helper to an environment, and the programs that start gh
// and glab with a token. Git asks helpers of the user's own configuration before it.
func (s *Server) withGit(env []string) []string {
	if s.cfg.Program == "" {
		return env
	}
	env = addGitConfig(env, "credential.helper", s.cfg.Program+" git-credential")
	if s.cfg.FilesDir == "" {
		return env
	}
	dir := filepath.Join(s.cfg.FilesDir, clientsDir)
	search := searchPath(env)
	s.linkClients(dir, search)
	if slices.Contains(filepath.SplitList(search), dir) {
		return env
	}
	return append(env, "PATH="+dir+string(filepath.ListSeparator)+search)
}

// clientsDir is the folder, in that of files in memory, that has codehub by the names of gh and
// glab. It is the first on the PATH, unless the user has put it elsewhere.
const clientsDir = "bin"

// linkClients makes the links of the programs that the search path has, so that a program which is
// not installed is not found, and removes the others.
func (s *Server) linkClients(dir, search string) {
	for _, name := range []string{agent.GitHubClient, agent.GitLabClient} {
		link := filepath.Join(dir, name)
		installed := slices.ContainsFunc(filepath.SplitList(search), func(folder string) bool {
			return folder != dir && isProgram(filepath.Join(folder, name))
		})
		var err error
		if installed {
			if err = os.MkdirAll(dir, 0o700); err == nil {
				err = os.Symlink(s.cfg.Program, link)
			}
		} else {
			err = os.Remove(link)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("link "+name+" failed", "err", err)
		}
	}
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
