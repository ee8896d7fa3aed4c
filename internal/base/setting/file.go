package setting

import (
	"fmt"
	"io"
	"os"
)

// maxFile is the size of a file that a setting names, in bytes.
const maxFile = 1 << 20

// ReadFile reads a file that a setting names, of at most 1 MiB.
func ReadFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is too large", file)
	}
	return b, err
}
