package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldest is the first release that supports all settings of this package.
const oldest = 14

// binDirs are the folders in which distributions install the server's programs. The
// folder of postgres in PATH is searched as well.
var binDirs = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // PGDG for Red Hat and its derivatives
	"/usr/libexec/postgresql*",  // Alpine
	"/usr/lib*/postgresql*/bin", // Gentoo, SUSE
	"/usr/local/pgsql*/bin",     // PostgreSQL's own build
}

// ErrNotInstalled is the error of Start if no usable PostgreSQL is installed.
var ErrNotInstalled = errors.New("no PostgreSQL is installed that codehub can use: " +
	"install one (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; " +
	"Alpine: apk add postgresql), or set CODEHUB_DATABASE_URL to a server of your own")

// installation is one installed release.
type installation struct {
	major int
	bin   string // folder with postgres and initdb
}

func (i installation) path(program string) string { return filepath.Join(i.bin, program) }

// ofMajor returns the installed release of a major version.
func ofMajor(have []installation, major int) (installation, bool) {
	i := slices.IndexFunc(have, func(i installation) bool { return i.major == major })
	if i < 0 {
		return installation{}, false
	}
	return have[i], true
}

// installations lists the installed releases, newest first. patterns are file patterns
// of bin folders; by default it searches the folders of distributions and PATH. It
// omits releases that are too old.
func installations(ctx context.Context, patterns []string) ([]installation, error) {
	dirs, err := candidates(patterns)
	if err != nil {
		return nil, err
	}
	var found []installation
	var unusable []error
	for _, dir := range dirs {
		major, err := majorVersion(ctx, filepath.Join(dir, "postgres"))
		switch {
		case err != nil:
			unusable = append(unusable, err)
		case major < oldest:
			unusable = append(unusable, fmt.Errorf("%s is PostgreSQL %d, but codehub needs %d or newer", dir, major, oldest))
		case !slices.ContainsFunc(found, func(i installation) bool { return i.major == major }):
			found = append(found, installation{major: major, bin: dir})
		}
	}
	if len(found) == 0 {
		return nil, errors.Join(append([]error{ErrNotInstalled}, unusable...)...)
	}
	slices.SortStableFunc(found, func(a, b installation) int { return b.major - a.major })
	return found, nil
}

// candidates lists the folders that contain both programs, without duplicates.
func candidates(patterns []string) ([]string, error) {
	var dirs []string
	if len(patterns) == 0 {
		patterns = binDirs
		if p, err := exec.LookPath("postgres"); err == nil {
			if p, err = filepath.EvalSymlinks(p); err == nil {
				dirs = append(dirs, filepath.Dir(p))
			}
		}
	}
	for _, pattern := range patterns {
		match, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("look for PostgreSQL in %q: %w", pattern, err)
		}
		dirs = append(dirs, match...)
	}
	complete := func(dir string) bool {
		for _, program := range []string{"postgres", "initdb"} {
			if fi, err := os.Stat(filepath.Join(dir, program)); err != nil || !fi.Mode().IsRegular() {
				return false
			}
		}
		return true
	}
	var out []string
	for _, dir := range dirs {
		if complete(dir) && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out, nil
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func majorVersion(ctx context.Context, postgres string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, postgres, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its version: %w", postgres, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("ask %s for its version: unexpected output %q", postgres, strings.TrimSpace(string(out)))
	}
	return strconv.Atoi(string(m[1]))
}
