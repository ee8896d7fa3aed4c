package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"codehub/internal/runtime/account"
)

// description is what a Pod sees of its image.
type description struct {
	account.Accounts

	Env []string `json:"env,omitempty"`
}

// maxAccounts is the longest list of users or groups. Both become annotations of Pods, which
// have 256 KiB together.
const maxAccounts = 96 << 10

// describe prints the users, the shell and the variables of the image below root, in one line.
func describe(root string, env []string, out io.Writer) error {
	d := description{Env: ofImage(env)}
	var err error
	if d.Passwd, err = readAccounts(root, "/etc/passwd"); err != nil {
		return err
	}
	if d.Group, err = readAccounts(root, "/etc/group"); err != nil {
		return err
	}
	has := func(name string) (bool, error) {
		_, err := os.Stat(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	if d.Shell, err = account.FindShell(d.Passwd, has); err != nil {
		return err
	}
	if d.Tmp, err = has("/tmp"); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

func readAccounts(root, name string) (string, error) {
	f, err := os.Open(filepath.Join(root, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("%s of the image is not a file", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAccounts+1))
	if err == nil && len(text) > maxAccounts {
		err = fmt.Errorf("%s of the image is larger than %d bytes", name, maxAccounts)
	}
	return string(text), err
}

// ofImage returns the variables that a Pod has from its image.
func ofImage(env []string) []string {
	var out []string
	for _, variable := range env {
		name, _, _ := strings.Cut(variable, "=")
		if name != "GOMEMLIMIT" && name != "HOSTNAME" && name != "HOME" && !strings.HasPrefix(name, "KUBERNETES_") {
			out = append(out, variable)
		}
	}
	return out
}
