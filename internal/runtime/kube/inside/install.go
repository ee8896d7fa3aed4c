package inside

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"codehub/internal/runtime/agent/program"
)

// installAgent writes the agent's executable to a file: the one in this executable, or else
// this executable.
func installAgent(file string) error {
	in, err := program.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return installSelf(file)
	}
	if err != nil {
		return err
	}
	return write(in, file)
}

// installSelf copies this executable to a file.
func installSelf(file string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	in, err := os.Open(self)
	if err != nil {
		return err
	}
	return write(in, file)
}

func write(in io.ReadCloser, file string) error {
	defer in.Close()
	out, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
