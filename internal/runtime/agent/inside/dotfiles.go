package inside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
)

const (
	// dotfilesDir is the folder of the home into which dotfiles are cloned, and dotfilesMark a file
	// in the .git of one that was.
	dotfilesDir, dotfilesMark = ".dotfiles", "codehub-dotfiles"
	// keptSuffix is that of what was in the place of a link.
	keptSuffix = ".before-dotfiles"
	// dotfilesTimeout is the time limit of their script.
	dotfilesTimeout = 30 * time.Minute
	maxDotfileDepth = 16
)

// dotfileScripts are the scripts of which the first that exists is run, as in Codespaces.
var dotfileScripts = []string{"install.sh", "install", "bootstrap.sh", "bootstrap", "script/bootstrap", "setup.sh", "setup", "script/setup"}

// commonDirs are folders in which other programs have files too: they are made, and what is in them
// is linked.
var commonDirs = []string{".config", ".local", ".local/share", ".local/state", ".ssh", ".gnupg"}

// notLinked are about the repository itself, or would be in the place of its folder.
var notLinked = []string{".git", ".gitignore", ".gitattributes", ".gitmodules", ".github", ".gitlab", ".gitlab-ci.yml", dotfilesDir}

// dotfiles clones the user's dotfiles, or updates them, and runs their script or links them.
func (s *Server) dotfiles(st *step) error {
	if err := s.fetchDotfiles(st); err != nil {
		return err
	}
	dir := filepath.Join(s.cfg.Home, dotfilesDir)
	for _, name := range dotfileScripts {
		if file, ok := fileWithin(dir, name); ok {
			s.change(func() { st.note("$ " + filepath.Join(dotfilesDir, name)) })
			return s.dotfileScript(st, dir, file)
		}
	}
	return s.linkDotfiles(st, dir, s.cfg.Home, 0)
}

// fetchDotfiles brings the repository to its folder. A clone of another repository that it has made
// before is kept under another name.
func (s *Server) fetchDotfiles(st *step) error {
	repo := *st.spec.Dotfiles
	repo.Path, repo.Submodules = "", false
	if err := repo.Check(); err != nil {
		return stepError{"refused", err.Error()}
	}
	dir := filepath.Join(s.cfg.Home, dotfilesDir)
	mark := filepath.Join(dir, ".git", dotfilesMark)
	source := repo.URL + "\n" + repo.Branch + "\n"
	switch before, err := readSmall(mark); {
	case err == nil && string(before) == source:
		if st.again {
			return s.pullDotfiles(st, dir)
		}
		return nil // an earlier start was interrupted after the clone
	case err == nil:
		kept, err := keep(dir)
		if err != nil {
			return err
		}
		s.change(func() { st.note(fmt.Sprintf("The dotfiles before are kept in %s.", kept)) })
	default:
		// The end of the container may have come between the clone and the mark, of which the files
		// are the same; other files are the user's.
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 && s.origin(dir) != repo.URL {
			return stepError{"dotfiles", fmt.Sprintf("%s is there already, and no clone of %s. Move it away.", dir, repo.URL)}
		}
	}
	if err := s.cloneTo(st, repo, dir); err != nil && !errors.Is(err, errSkipped) {
		return err
	}
	return os.WriteFile(mark, []byte(source), 0o600)
}

// origin returns the address that a clone was made of; empty: it is none.
func (s *Server) origin(dir string) string {
	config, err := readSmall(filepath.Join(dir, ".git", "config"))
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(config) {
		if name, value, ok := strings.Cut(strings.TrimSpace(string(line)), "="); ok && strings.TrimSpace(name) == "url" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// pullDotfiles brings the clone up to date, unless it was changed in another way.
func (s *Server) pullDotfiles(st *step, dir string) error {
	if _, err := lookPath("git", s.environ(), dir); err != nil {
		return stepError{"no_git", "The image has no git. Choose another image, or install git."}
	}
	err := s.runCommand(st, dir, s.cloneEnv(), cloneTimeout, "git", "-c", "core.hooksPath=/dev/null", "pull", "--progress", "--ff-only")
	if err != nil {
		err = s.explain(st, filepath.Join(dir, ".git", "none"), err)
	}
	var known stepError
	if errors.As(err, &known) && known.reason == "git" {
		return stepError{"git_pull", known.words}
	}
	return err
}

// dotfileScript runs a script of the dotfiles. One that says no interpreter, or may not be executed,
// runs in the shell of scripts.
func (s *Server) dotfileScript(st *step, dir, file string) error {
	c := agent.ScriptCommand{Args: []string{file}}
	if !runnable(file) {
		shell := scriptShell()
		if shell == "" {
			return errors.New("the image has no shell")
		}
		c.Args = []string{shell, file}
	}
	limit := dotfilesTimeout
	if st.spec.Timeout > 0 {
		limit = min(time.Duration(st.spec.Timeout)*time.Second, agent.MaxScriptTimeout)
	}
	return s.scriptCommand(&stepOutput{server: s, step: st}, dir, nil, limit, c)
}

func runnable(file string) bool {
	if unix.Access(file, unix.X_OK) != nil {
		return false
	}
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	begin := make([]byte, 4)
	n, _ := io.ReadFull(f, begin)
	return bytes.HasPrefix(begin[:n], []byte("#!")) || string(begin[:n]) == "\x7fELF"
}

// linkDotfiles links what begins with a dot, in a folder of the repository, to a folder of the home;
// further in, everything. A file in the place of a link gets another name; in a folder there it
// continues.
func (s *Server) linkDotfiles(st *step, from, to string, depth int) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		if depth == 0 && (!strings.HasPrefix(e.Name(), ".") || slices.Contains(notLinked, e.Name())) {
			continue
		}
		if err := s.linkDotfile(st, filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), depth); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (s *Server) linkDotfile(st *step, source, target string, depth int) error {
	note := func(words string, args ...any) { s.change(func() { st.note(fmt.Sprintf(words, args...)) }) }
	dir := filepath.Join(s.cfg.Home, dotfilesDir)
	name, err := filepath.Rel(dir, source)
	if err != nil {
		return err
	}
	if _, ok := resolvedWithin(dir, name); !ok {
		note("%s is not linked: it leads to nothing in the repository", name)
		return nil
	}
	switch there, err := os.Lstat(target); {
	case errors.Is(err, fs.ErrNotExist) && isDir(source) && slices.Contains(commonDirs, name):
		if err := os.Mkdir(target, 0o700); err != nil {
			return err
		}
		return s.linkDotfiles(st, source, target, depth+1)
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case there.IsDir() && isDir(source) && depth < maxDotfileDepth:
		return s.linkDotfiles(st, source, target, depth+1)
	default:
		link, _ := os.Readlink(target)
		if link == source {
			return nil
		}
		if s.cfg.FilesDir != "" && strings.HasPrefix(link, s.cfg.FilesDir+"/") {
			note("%s is not linked: a secret has its place", name)
			return nil
		}
		if slices.Contains(commonDirs, name) {
			note("%s is not linked: it is a folder either in the home or in the repository, not in both", name)
			return nil
		}
		kept, err := keep(target)
		if err != nil {
			return err
		}
		note("%s was there already, and is kept as %s", target, filepath.Base(kept))
	}
	if err := os.Symlink(source, target); err != nil {
		return err
	}
	note("%s -> %s", target, source)
	return nil
}

// isDir reports whether it is a folder itself, not a link to one.
func isDir(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.IsDir()
}

// keep renames a file to the first free name with keptSuffix, which it returns.
func keep(name string) (string, error) {
	kept := name + keptSuffix
	for n := 2; ; n++ {
		err := unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, kept, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) || n > 1000 {
			if err != nil {
				err = fmt.Errorf("keep %s: %w", name, err)
			}
			return kept, err
		}
		kept = name + keptSuffix + "-" + strconv.Itoa(n)
	}
}

// resolvedWithin returns what a name in a folder leads to; ok is false if that is not in the folder,
// or does not exist.
func resolvedWithin(dir, name string) (file string, ok bool) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", false
	}
	file, err = filepath.EvalSymlinks(filepath.Join(root, name))
	return file, err == nil && strings.HasPrefix(file, root+"/")
}

// fileWithin is resolvedWithin for a regular file.
func fileWithin(dir, name string) (string, bool) {
	file, ok := resolvedWithin(dir, name)
	if !ok {
		return "", false
	}
	info, err := os.Lstat(file)
	return filepath.Join(dir, name), err == nil && info.Mode().IsRegular()
}

// readSmall reads a small regular file.
func readSmall(name string) ([]byte, error) {
	if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() > 64<<10 {
		return nil, errors.Join(err, fs.ErrInvalid)
	}
	return os.ReadFile(name)
}
