package environ

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

// maxFile is the size of the largest file that is read, comments included.
const maxFile = 1 << 20

// File is a file of variables that may change at any time. The zero value has none.
type File struct {
	Path string // empty: no variables

	mu   sync.Mutex
	last map[string]string
}

// Env reads the file. If that fails, it returns the variables of the last successful
// call with the error, which contains no value.
func (f *File) Env() (map[string]string, error) {
	if f.Path == "" {
		return nil, nil
	}
	env, err := readFile(f.Path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.last = env
	}
	return f.last, err
}

func readFile(path string) (map[string]string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not block
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a file", path))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	env, err := ParseFile(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return env, nil
}
