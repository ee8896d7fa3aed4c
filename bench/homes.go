package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
		for i := range files {
			folder := filepath.Join(dir, fmt.Sprintf("project-%02d/src/pkg%03d", i/10_000, i/50))
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			at, n := rnd.IntN(len(text)-16<<10), int(rnd.ExpFloat64()*2500)%(16<<10)
			if err := writeHome(filepath.Join(folder, fmt.Sprintf("file%d.go", i)), text[at:at+n]); err != nil {
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
		content := make([]byte, size)
		for i := range max(mib/32, 2) {
			if i%2 == 0 { // copies differ
				at := i / 2 * size % (len(text) - size)
				copy(content, bytes.ReplaceAll(text[at:at+size], []byte("err"), fmt.Appendf(nil, "err%d", i)))
			} else if _, err := random.Read(content); err != nil {
				return err
			}
			if err := writeHome(filepath.Join(dir, fmt.Sprintf("file-%03d", i)), content); err != nil {
				return err
			}
		}
		return nil
	}
}

func writeHome(name string, content []byte) error {
	return errors.Join(os.WriteFile(name, content, 0o644), os.Lchown(name, workspaceUser, workspaceUser))
}
