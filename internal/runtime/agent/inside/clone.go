package inside

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/workspace"
)

const (
	// cloneTimeout is after how long a clone is ended. silence is after how many seconds without a
	// byte git ends one: servers send a keep-alive every 5 s.
	cloneTimeout = time.Hour
	silence      = 120
	// completeFile is a file in the .git of a clone that is complete.
	completeFile = "codehub-complete"
	// probeSize is larger than what a full file system may still have free: ext4 refuses a large
	// write also if a part of it would fit.
	probeSize = 16 << 20
)

// cloneEnv are the variables of git: no question, no protocol that runs programs or reads files
// of the workspace, also for submodules, and messages in English, which are read here.
func (s *Server) cloneEnv() []string {
	ssh := "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ConnectTimeout=30 -o ServerAliveInterval=15"
	for _, e := range s.environ() {
		if own, ok := strings.CutPrefix(e, "GIT_SSH_COMMAND="); ok {
			ssh = own
		}
	}
	return []string{
		"GIT_ALLOW_PROTOCOL=https:http:ssh", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C.UTF-8", "LANGUAGE=",
		"GIT_LFS_SKIP_SMUDGE=1", // fetched by a step of its own, with progress
		"GIT_HTTP_LOW_SPEED_LIMIT=1", "GIT_HTTP_LOW_SPEED_TIME=" + strconv.Itoa(silence),
		"GIT_SSH_COMMAND=" + ssh,
	}
}

// clone clones the repository of a step of that kind.
func (s *Server) clone(st *step) error {
	repo := *st.spec.Clone
	if err := repo.Check(); err != nil {
		return stepError{"refused", err.Error()}
	}
	return s.cloneTo(st, repo, filepath.Join(s.cfg.Home, repo.Folder()))
}

// cloneTo clones a repository, unless the folder has files. The folder gets them at the end, so that
// one with files is complete, also if the container ends during the clone.
func (s *Server) cloneTo(st *step, repo workspace.Repository, folder string) error {
	part := filepath.Join(filepath.Dir(folder), "."+filepath.Base(folder)+workspace.CloneSuffix)
	s.change(func() { st.Folder = folder })
	complete := filepath.Join(part, ".git", completeFile)
	_, err := os.Lstat(complete)
	moving := err == nil // the container has ended while the files were moved
	if !moving {
		if err := os.RemoveAll(part); err != nil {
			return err
		}
		switch entries, err := os.ReadDir(folder); {
		case err == nil && len(entries) > 0:
			s.lookInto(st, folder)
			return errSkipped
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return stepError{"in_the_way", fmt.Sprintf("%s is not a folder.", folder)}
		}
		if err := s.fetch(st, repo, folder, part); err != nil {
			err = s.explain(st, part, err)
			_ = os.RemoveAll(part)
			return err
		}
		if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
			_ = os.RemoveAll(part)
			return stepError{"in_the_way", fmt.Sprintf("%s got files during the clone. Move them away.", folder)}
		}
		if err := os.WriteFile(complete, nil, 0o600); err != nil {
			return err
		}
	}
	if err := moveFiles(part, folder); err != nil {
		return err
	}
	s.lookInto(st, folder)
	return nil
}

// lookInto reports what a cloned repository has for the IDE and the server. The IDE does not open
// dotfiles.
func (s *Server) lookInto(st *step, folder string) {
	if st.spec.Clone == nil {
		return
	}
	file, described := workspaceFile(folder), false
	s.inRepository(st.spec.Clone.Folder(), func(repo *os.Root) {
		names, _ := describing(repo)
		described = len(names) > 0
	})
	s.change(func() { st.File, st.Described = file, described })
}

// fetch clones into part, and makes the folder, which the IDE may open meanwhile.
func (s *Server) fetch(st *step, repo workspace.Repository, folder, part string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	parent := filepath.Dir(folder)
	if _, err := lookPath("git", s.environ(), parent); err != nil {
		return stepError{"no_git", "The image has no git. Choose another image, or install git."}
	}
	// No hooks: a clone brings none, but a template folder or a repository of the user might.
	args := []string{"git", "-c", "core.hooksPath=/dev/null", "clone", "--progress"}
	if repo.Branch != "" {
		args = append(args, "--branch="+repo.Branch)
	}
	if repo.Depth > 0 {
		args = append(args, "--depth="+strconv.Itoa(repo.Depth))
	}
	if repo.Submodules {
		args = append(args, "--recurse-submodules")
		if repo.Depth > 0 {
			args = append(args, "--shallow-submodules")
		}
	}
	if err := s.runCommand(st, parent, s.cloneEnv(), cloneTimeout, append(args, "--", repo.URL, part)...); err != nil {
		return err
	}
	return s.fetchLFS(st, part)
}

// fetchLFS gets the files of Git LFS, if the repository uses it and the image has it.
func (s *Server) fetchLFS(st *step, part string) error {
	if !usesLFS(part) {
		return nil
	}
	if _, err := lookPath("git-lfs", s.environ(), part); err != nil {
		s.change(func() {
			st.log = append(st.log, "The repository has files in Git LFS, but the image has no git-lfs: they are not fetched.\n"...)
		})
		return nil
	}
	env := append(s.cloneEnv(), "GIT_LFS_FORCE_PROGRESS=1")
	for _, args := range [][]string{{"git", "lfs", "install", "--local"}, {"git", "lfs", "pull"}} {
		if err := s.runCommand(st, part, env, cloneTimeout, args...); err != nil {
			return err
		}
	}
	return nil
}

// usesLFS reports whether a file .gitattributes in the first two levels has a filter of Git LFS.
func usesLFS(repo string) bool {
	for _, pattern := range []string{".gitattributes", "*/.gitattributes"} {
		files, _ := filepath.Glob(filepath.Join(repo, pattern))
		for _, file := range files {
			if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
				continue
			}
			if content, err := os.ReadFile(file); err == nil && bytes.Contains(content, []byte("filter=lfs")) {
				return true
			}
		}
	}
	return false
}

var gitWords = regexp.MustCompile(`^(fatal|error|remote|ssh|git|codehub): |^(Permission denied|Host key verification|batch response)`)

// gitLogin matches the words of git about a server that wants a login, or refuses the one it got.
var gitLogin = regexp.MustCompile(`(?m)^fatal: (could not read (Username|Password) for|Authentication failed for|unable to access .* error: 403)`)

// explain returns why git failed, in its own words.
func (s *Server) explain(st *step, part string, err error) error {
	var known stepError
	if errors.As(err, &known) {
		return err
	}
	s.setup.mu.Lock()
	log := string(st.log)
	s.setup.mu.Unlock()
	if lacksSpace(err) || strings.Contains(log, unix.ENOSPC.Error()) || strings.Contains(log, "No space left on device") || strings.Contains(log, "Disk quota exceeded") ||
		strings.Contains(log, "unable to write file") && isFull(part) { // git reports no reason for a checkout
		var disk unix.Statfs_t
		_ = os.RemoveAll(part)
		if err := unix.Statfs(s.cfg.Home, &disk); err != nil {
			return stepError{"space", "The repository does not fit into the home folder."}
		}
		return stepError{"space", fmt.Sprintf("The repository does not fit into the home folder, which has %d MB free.", int64(disk.Bavail)*disk.Bsize/1e6)}
	}
	var words []string
	for line := range strings.Lines(log) {
		if line = strings.TrimSpace(line); gitWords.MatchString(line) && !gitProgress.MatchString(line) {
			words = append(words, line)
		}
	}
	if len(words) == 0 {
		return fmt.Errorf("git: %w", err)
	}
	text, reason := strings.Join(words[max(0, len(words)-8):], "\n"), "git"
	if gitLogin.MatchString(text) {
		reason = "login"
	}
	return stepError{reason, text}
}

func lacksSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// isFull reports whether a file of probeSize does not fit into a folder.
func isFull(folder string) bool {
	f, err := os.CreateTemp(folder, ".codehub-probe-") // the repository may have links
	if err != nil {
		return lacksSpace(err)
	}
	defer os.Remove(f.Name())
	content := make([]byte, probeSize)
	_, _ = rand.Read(content) // a file system may compress it
	_, err = f.Write(content)
	return lacksSpace(errors.Join(err, f.Close()))
}

// moveFiles moves the content of a clone to its folder, .git last, and continues after an
// interruption. It replaces nothing.
func moveFiles(part, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(part)
	if err != nil {
		return err
	}
	move := func(name string) error {
		err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(part, name), unix.AT_FDCWD, filepath.Join(folder, name), unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			return stepError{"in_the_way", fmt.Sprintf("%s exists already. Move it away.", filepath.Join(folder, name))}
		}
		return err
	}
	for _, e := range entries {
		if e.Name() == ".git" {
			continue
		}
		if err := move(e.Name()); err != nil {
			return err
		}
	}
	if err := move(".git"); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(folder, ".git", completeFile))
	return os.RemoveAll(part)
}

// workspaceFile returns the path of the only *.code-workspace file in a folder, or "".
func workspaceFile(folder string) string {
	entries, _ := os.ReadDir(folder)
	found := ""
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), ".code-workspace") {
			if found != "" {
				return ""
			}
			found = filepath.Join(folder, e.Name())
		}
	}
	return found
}
