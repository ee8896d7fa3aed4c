package inside

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"codehub/internal/runtime/agent"
)

const (
	// systemConfig is git's configuration of the image, and systemConfigEnv the variable that names
	// another file in its place. Git reads that one first, so all other configurations precede it.
	systemConfig    = "/etc/gitconfig"
	systemConfigEnv = "GIT_CONFIG_SYSTEM"
	sshAgentEnv     = "SSH_AUTH_SOCK"
)

// gitState is what git and ssh have of the workspace's owner.
type gitState struct {
	image string // git's configuration of the image
	began time.Time
	given chan struct{} // closed with the first agent.Git

	mu    sync.Mutex
	now   agent.Git
	first bool // given is closed
}

// beginGit writes the first configuration of git and returns the variables that name it and the
// socket of the SSH key. A variable that the image or the user has set for the socket stays.
func (s *Server) beginGit() (env []string) {
	s.git.image, s.git.began, s.git.given = cmp.Or(os.Getenv(systemConfigEnv), systemConfig), time.Now(), make(chan struct{})
	if s.cfg.GitConfig != "" {
		if err := s.writeGitConfig(agent.Git{}); err != nil {
			s.cfg.Log.Warn("write the configuration of git failed", "err", err)
		} else {
			env = append(env, systemConfigEnv+"="+s.cfg.GitConfig)
		}
	}
	if s.cfg.SSHSocket != "" && os.Getenv(sshAgentEnv) == "" {
		env = append(env, sshAgentEnv+"="+s.cfg.SSHSocket)
	}
	return env
}

// takeGit takes the settings of git, as often as they change.
func (s *Server) takeGit(w http.ResponseWriter, r *http.Request) {
	var given agent.Git
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, agent.MaxGit)).Decode(&given); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("read the settings of git: %w", err))
		return
	}
	s.git.mu.Lock()
	defer s.git.mu.Unlock()
	s.git.now = given
	if !s.git.first {
		s.git.first = true
		close(s.git.given)
	}
	if s.cfg.GitConfig != "" {
		if err := s.writeGitConfig(given); err != nil {
			refuse(w, http.StatusInternalServerError, err)
			return
		}
	}
	respond(w, http.StatusOK, struct{}{})
}

// writeGitConfig replaces git's configuration at once, so that git never reads a part of it.
func (s *Server) writeGitConfig(g agent.Git) error {
	dir := filepath.Dir(s.cfg.GitConfig)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	signers := filepath.Join(dir, "allowed_signers")
	for _, file := range [][2]string{{signers, allowedSigners(g)}, {s.cfg.GitConfig, gitConfig(g, s.git.image, signers)}} {
		part := file[0] + ".part"
		if err := os.WriteFile(part, []byte(file[1]), 0o600); err != nil {
			return err
		}
		if err := os.Rename(part, file[0]); err != nil {
			return err
		}
	}
	return nil
}

// gitConfig is git's configuration: that of the image, then the workspace's.
func gitConfig(g agent.Git, image, signers string) string {
	var b strings.Builder
	b.WriteString("# Written by codehub, and replaced at each change. ~/.gitconfig precedes it.\n")
	section := func(name string, lines ...[2]string) {
		fmt.Fprintf(&b, "[%s]\n", name)
		for _, l := range lines {
			if l[1] != "" {
				fmt.Fprintf(&b, "\t%s = %s\n", l[0], quoted(l[1]))
			}
		}
	}
	section("include", [2]string{"path", image})
	section("user", [2]string{"name", g.Name}, [2]string{"email", g.Email})
	if g.Key != "" && g.Sign {
		section("user", [2]string{"signingKey", "key::" + g.Key})
		section("gpg", [2]string{"format", "ssh"})
		section("commit", [2]string{"gpgSign", "true"})
		section("tag", [2]string{"gpgSign", "true"})
	}
	if allowedSigners(g) != "" {
		section(`gpg "ssh"`, [2]string{"allowedSignersFile", signers})
	}
	return b.String()
}

// allowedSigners is the file by which git recognizes the owner's own signatures.
func allowedSigners(g agent.Git) string {
	if g.Key == "" || g.Email == "" || strings.ContainsAny(g.Email, "\" *?!,\\") {
		return "" // what is a pattern there
	}
	return fmt.Sprintf("%s namespaces=\"git\" %s\n", oneLine(g.Email), oneLine(g.Key))
}

// quoted is a value of git's configuration.
func quoted(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(oneLine(value)) + `"`
}

// oneLine is a text without control characters, which would end a line.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, text)
}
