package inside

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
)

// maxFolders is how many entries of .devcontainer are looked at.
const maxFolders = 1000

// descriptions hands out the files by which the cloned repositories describe their environment.
func (s *Server) descriptions(w http.ResponseWriter, _ *http.Request) {
	var folders []string
	s.setup.mu.Lock()
	for _, st := range s.setup.steps {
		if st.spec.Clone != nil && (st.State == agent.StepDone || st.State == agent.StepSkipped) {
			folders = append(folders, st.spec.Clone.Folder())
		}
	}
	s.setup.mu.Unlock()
	var all agent.Descriptions
	size := 0
	for _, folder := range folders {
		s.inRepository(folder, func(repo *os.Root) {
			names, more := describing(repo)
			all.More = all.More || more
			for _, name := range names {
				if len(all.Files) == agent.MaxDescriptions {
					all.More = true
					return
				}
				d := agent.Description{Folder: folder, Name: name}
				d.Content, d.Problem = readDescription(repo, name)
				if size += len(d.Content); size > agent.MaxDescriptionBytes {
					size -= len(d.Content)
					d.Content, d.Problem = nil, agent.ProblemLong
				}
				all.Files = append(all.Files, d)
			}
		})
	}
	respond(w, http.StatusOK, all)
}

// inRepository calls do with a folder below the home, which no path in it leaves.
func (s *Server) inRepository(folder string, do func(*os.Root)) {
	home, err := os.OpenRoot(s.cfg.Home)
	if err != nil {
		return
	}
	defer home.Close()
	repo, err := home.OpenRoot(folder)
	if err != nil {
		return
	}
	defer repo.Close()
	do(repo)
}

// describing returns the names of the files by which a repository describes its environment; more
// reports that it may have others.
func describing(repo *os.Root) (names []string, more bool) {
	there := func(name string) bool {
		_, err := repo.Stat(name)
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
	}
	add := func(name string) {
		if agent.IsDescription(name) && there(name) {
			names = append(names, name)
		}
	}
	add(".devcontainer/devcontainer.json")
	add(".devcontainer.json")
	if dir, err := repo.OpenFile(".devcontainer", os.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		entries, _ := dir.ReadDir(maxFolders)
		more = len(entries) == maxFolders
		dir.Close()
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			if e.Type().IsRegular() {
				continue
			}
			if len(names) > agent.MaxDescriptions {
				more = true
				break
			}
			add(".devcontainer/" + e.Name() + "/devcontainer.json")
		}
	}
	if len(names) == 0 {
		add(".gitpod.yml")
	}
	return names, more
}

// readDescription reads a regular file. It does not wait for one who writes into a pipe.
func readDescription(repo *os.Root, name string) (content []byte, problem string) {
	f, err := repo.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, agent.ProblemUnreadable
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, agent.ProblemUnreadable
	case !info.Mode().IsRegular():
		return nil, agent.ProblemKind
	}
	content, err = io.ReadAll(io.LimitReader(f, agent.MaxDescription+1))
	switch {
	case err != nil:
		return nil, agent.ProblemUnreadable
	case len(content) > agent.MaxDescription:
		return nil, agent.ProblemLong
	}
	return content, ""
}
