package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The archived homes have source code of Go's standard library and random
// bytes, the same in every run.

// workspaceUser is the owner of the files, as in the workspace image.
const workspaceUser = 1000

// sourceText returns the concatenated source code of the standard library.
func sourceText(ctx context.Context) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find Go's source code: %w", err)
	}
	var text []byte
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(out)), "src"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(name, ".go") {
			return err
		}
		content, err := os.ReadFile(name)
		text = append(text, content...)
		return err
	})
	if err == nil && len(text) < 64<<20 {
		err = errors.New("less than 64 MiB of source code")
	}
	if err != nil {
		return nil, fmt.Errorf("read Go's source code: %w", err)
	}
	return text, nil
}

// fillSmall fills a home with small files of source code, 2.5 KB on average and
// 50 to a folder.
func fillSmall(text []byte, files int) func(dir string) error {
	return func(dir string) error {
		rnd := rand.New(rand.NewPCG(1, 2))
		folder := ""
		for i := range files {
			if i%50 == 0 {
				folder = filepath.Join(dir, fmt.Sprintf("project-%02d/src/pkg%03d", i/10_000, i/50))
				if err := os.MkdirAll(folder, 0o755); err != nil {
					return err
				}
			}
			at, n := rnd.IntN(len(text)-16<<10), int(rnd.ExpFloat64()*2500)%(16<<10)
			name := filepath.Join(folder, fmt.Sprintf("file%d.go", i))
			if err := os.WriteFile(name, text[at:at+n], 0o644); err != nil {
				return err
			}
			if err := os.Lchown(name, workspaceUser, workspaceUser); err != nil {
				return err
			}
		}
		return nil
	}
}

// fillMixed fills a home with files of 32 MiB, alternately of source code and
// random bytes.
func fillMixed(text []byte, mib int) func(dir string) error {
	const size = 32 << 20
	return func(dir string) error {
		random := rand.NewChaCha8([32]byte{1})
		for i := range max(mib/32, 2) {
			var content io.Reader = random
			if i%2 == 0 {
				content = &code{text: text, at: i / 2 * size % len(text), copy: i}
			}
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("file-%03d", i)))
			if err != nil {
				return err
			}
			_, err = io.CopyN(f, content, size)
			if closed := f.Close(); err == nil {
				err = closed
			}
			if err == nil {
				err = os.Lchown(f.Name(), workspaceUser, workspaceUser)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// code is an endless reader of source code. Each copy replaces "err" by a
// different name, so that copies differ.
type code struct {
	text []byte
	at   int
	copy int
	rest []byte
}

func (c *code) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		part := c.text[c.at:min(c.at+1<<20, len(c.text))]
		c.at = (c.at + len(part)) % len(c.text)
		c.rest = bytes.ReplaceAll(part, []byte("err"), fmt.Appendf(nil, "err%d", c.copy))
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
