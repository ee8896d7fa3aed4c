package templates

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"codehub/internal/workspace/template"
)

// maxFiles bounds the templates of a folder.
const maxFiles = 500

// folder reads the templates of a folder. It is used by one goroutine at a time.
type folder struct {
	dir   string
	files map[string]file // by name of the file
}

// file is a template as it was last read.
type file struct {
	size    int64
	changed time.Time
	good    *Entry // the last version without a mistake; nil: there was none
	problem error
}

// read returns the templates of the folder, and what is wrong with its files. A file with a mistake
// keeps its last good version; if the folder cannot be read, all files do.
func (f *folder) read() (list []Entry, problems []error) {
	if f.dir == "" {
		return nil, nil
	}
	found, err := os.ReadDir(f.dir)
	if err != nil {
		problems = append(problems, err)
	} else {
		files := map[string]file{}
		for _, e := range found {
			name := e.Name()
			if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" || strings.HasPrefix(name, ".") {
				continue
			}
			if len(files) == maxFiles {
				problems = append(problems, fmt.Errorf("there are more than %d templates", maxFiles))
				break
			}
			files[name] = f.file(name)
		}
		f.files = files
	}
	names := make([]string, 0, len(f.files))
	for name := range f.files {
		names = append(names, name)
	}
	slices.Sort(names)
	taken := map[string]string{}
	for _, name := range names {
		one := f.files[name]
		if one.problem != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, one.problem))
		}
		if one.good == nil {
			continue
		}
		if other, twice := taken[one.good.Name]; twice {
			problems = append(problems, fmt.Errorf("%s: %s is the same template", name, other))
			continue
		}
		taken[one.good.Name] = name
		list = append(list, *one.good)
	}
	return list, problems
}

// file reads one file, if it has changed.
func (f *folder) file(name string) file {
	before := f.files[name]
	path := filepath.Join(f.dir, name)
	info, err := os.Stat(path) // a ConfigMap's files are links
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	if err != nil {
		return file{good: before.good, problem: err}
	}
	if info.Size() == before.size && info.ModTime().Equal(before.changed) {
		return before
	}
	now := file{size: info.Size(), changed: info.ModTime(), good: before.good}
	text, err := readAtMost(path, template.MaxBytes+1)
	if err != nil {
		return file{good: before.good, problem: err}
	}
	t, err := template.Parse(strings.TrimSuffix(name, filepath.Ext(name)), text)
	if now.problem = err; err == nil {
		now.good = &Entry{Template: t, Text: string(text), Source: FromFolder, SavedAt: info.ModTime()}
	}
	return now
}

func readAtMost(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, n))
}
