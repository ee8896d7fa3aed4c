package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
)

// editorSettings is the file below the home with the settings of the IDE that are neither the
// user's nor a folder's.
const editorSettings = ".local/share/code-server/Machine/settings.json"

// givenSettings is the file in agent.StateDir with the settings that the last start added.
const givenSettings = "editor-settings.json"

// addEditorSettings adds the settings of the setup to those of the IDE, before it starts. One that
// has another value than an earlier start gave was changed by the user, and stays.
func (s *Server) addEditorSettings() error {
	s.setup.mu.Lock()
	text := s.setup.editor
	s.setup.mu.Unlock()
	file, last := filepath.Join(s.cfg.Home, editorSettings), filepath.Join(s.cfg.Home, agent.StateDir, givenSettings)
	before, err := readSettings(last)
	if err != nil {
		before = nil
	}
	if len(text) == 0 && len(before) == 0 {
		return nil
	}
	given := map[string]any{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &given); err != nil {
			return fmt.Errorf("read the settings of the setup: %w", err)
		}
	}
	now, err := readSettings(file)
	if err != nil {
		return fmt.Errorf("the IDE's settings in %s stay as they are: %w", file, err)
	}
	next := maps.Clone(now)
	if next == nil {
		next = map[string]any{}
	}
	for name, value := range before {
		if reflect.DeepEqual(next[name], value) {
			delete(next, name)
		}
	}
	for name, value := range given {
		if _, own := next[name]; !own {
			next[name] = value
		}
	}
	if reflect.DeepEqual(next, now) {
		return nil
	}
	if err := writeSettings(file, next); err != nil {
		return err
	}
	return writeSettings(last, given)
}

// readSettings reads a file with a JSON object; one that does not exist has none.
func readSettings(name string) (map[string]any, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > agent.MaxDescription {
		return nil, errors.New("it is not a regular file, or too large")
	}
	content, err := io.ReadAll(io.LimitReader(f, agent.MaxDescription))
	if err != nil || strings.TrimSpace(string(content)) == "" {
		return nil, err
	}
	var settings map[string]any
	if err := json.Unmarshal(content, &settings); err != nil {
		return nil, errors.New("it has comments, or is not JSON")
	}
	return settings, nil
}

func writeSettings(name string, settings map[string]any) error {
	content, err := json.MarshalIndent(settings, "", "    ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	part := name + ".codehub"
	_ = os.Remove(part)
	if err := os.WriteFile(part, append(content, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(part, name)
}

var containerEnv = regexp.MustCompile(`\$\{containerEnv:([^:}]*)(:([^:}]*))?[^}]*\}`)

// expand replaces the variables in a value of agent.Setup.References.
func expand(value string, env []string) string {
	return containerEnv.ReplaceAllStringFunc(value, func(match string) string {
		parts := containerEnv.FindStringSubmatch(match)
		found, ok := "", false
		for _, e := range env {
			if v, is := strings.CutPrefix(e, parts[1]+"="); is {
				found, ok = v, true
			}
		}
		if !ok {
			return parts[3]
		}
		return found
	})
}
