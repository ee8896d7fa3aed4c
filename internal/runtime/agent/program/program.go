// Package program has the executable of workspaces, cmd/codehub-agent, which make build puts
// into codehub's executable. A workspace starts it as its first process, and it is small: a
// start does not initialize the server.
package program

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"sync"
)

// Open returns the content of the agent's executable, or fs.ErrNotExist if this executable
// was built without it.
func Open() (io.ReadCloser, error) {
	content, err := compressed()
	if err != nil {
		return nil, err
	}
	return gzip.NewReader(bytes.NewReader(content))
}

// Digest returns the SHA-256 of that content in hexadecimal, or "" if there is none: then the
// executable of the server, which has all of the agent, is the agent.
func Digest() (string, error) { return digest() }

var digest = sync.OnceValues(func() (string, error) {
	in, err := Open()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), in.Close()
})
