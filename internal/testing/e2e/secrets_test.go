package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A workspace has its secrets as a variable and as a file in memory, and their values are in
// nothing else: neither the container's configuration and log, nor the server's log and data
// folder, nor a dump of the database, nor the archive of the home.
func TestSecretIsNowhereElse(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	dsn := database(t)
	keys := secretKey(t)
	folder := filepath.Join(scratch(t), "archives")
	s := start(t, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_SECRET_KEY_FILE="+keys, "CODEHUB_ARCHIVE_URL=file://"+folder, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_LOG_LEVEL=debug")
	value, later := "s3cret-"+rand.Text(), "later-"+rand.Text()
	ctx := t.Context()
	made, err := s.api.CreateSecret(ctx, "", api.CreateSecret{Name: "npm", Value: value + "\n", Env: "NPM_TOKEN", File: "~/.config/npm/token"})
	if err != nil {
		t.Fatal(err)
	}
	id := s.create(api.CreateWorkspace{Name: "shop"})
	s.awaitPhase(id, "RUNNING")
	// Before any output of the workspace passes through the server.
	t.Logf("copies in the memory of the server after the delivery: %d", copies(t, s.Pid(), value))
	run := func(command string) string {
		t.Helper()
		x, err := s.api.Exec(ctx, id, api.Exec{Shell: command})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := x.Run(ctx, &out, &out, nil); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	const read = `printf '%s|' "$NPM_TOKEN"; cat ~/.config/npm/token; stat -Lc '%a %U' ~/.config/npm/token; stat -fLc %T ~/.config/npm/token`
	if out := run(read); out != value+"|"+value+"\n600 coder\ntmpfs\n" {
		t.Fatalf("in the workspace: %q", out)
	}
	// The IDE's processes have the variable.
	if out := run(`grep -lz NPM_TOKEN= /proc/[0-9]*/environ 2>/dev/null | wc -l`); strings.TrimSpace(out) == "0" {
		t.Error("no process has the variable")
	}
	if out := run(`grep -rlF "$NPM_TOKEN" ~ | wc -l`); strings.TrimSpace(out) != "0" {
		t.Errorf("%s files of the home have the value", out)
	}

	found := search{t, map[string]string{"the value": value, "the new value": later}}
	inspected, err := s.docker.ContainerInspect(ctx, workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found.in("docker inspect", []byte(fmt.Sprintf("%+v", inspected.Container.Config)+string(inspected.Raw)))
	var log bytes.Buffer
	r, err := s.api.Logs(ctx, id, 1000, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.Copy(&log, r); err != nil {
		t.Fatal(err)
	}
	found.in("the container's log", log.Bytes())

	if _, err := s.api.UpdateSecret(ctx, made.ID, api.UpdateSecret{Value: &later}); err != nil {
		t.Fatal(err)
	}
	if list, err := s.api.Secrets(ctx); err != nil || len(list.Waiting) != 1 || list.Waiting[0].WorkspaceID != id {
		t.Errorf("%+v, %v: the workspace does not wait for the change", list, err)
	}
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	if out := run(read); !strings.HasPrefix(out, later+"|"+later) {
		t.Errorf("after the next start: %q", out)
	}
	if list, err := s.api.Secrets(ctx); err != nil || len(list.Waiting) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	s.setDesired(id, "ARCHIVED")
	s.awaitPhase(id, "ARCHIVED")
	archives := 0
	for _, dir := range []string{folder, s.home} {
		found.below(dir, func(name string, content []byte) {
			if !strings.HasSuffix(name, ".tar.zst") {
				return
			}
			archives++
			d, err := zstd.NewReader(bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			tar, err := io.ReadAll(d)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(tar, []byte(".config/npm/token")) {
				t.Error("the archive lacks the link to the file")
			}
			found.in("the unpacked archive", tar)
		})
	}
	if archives != 1 {
		t.Errorf("%d archives", archives)
	}
	dump, err := exec.CommandContext(ctx, "pg_dump", dsn).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(dump, []byte("NPM_TOKEN")) {
		t.Error("the dump lacks the secret")
	}
	found.in("a dump of the database", dump)
	found.in("the server's log", []byte(s.Log()))
	if !strings.Contains(s.Log(), id) {
		t.Error("the server's log is empty")
	}
	t.Logf("copies in the memory of the server at the end: %d and %d", copies(t, s.Pid(), value), copies(t, s.Pid(), later))

	// After a rotation the values are those of before.
	out, err := s.command("secret-key", "rotate", "--database-url", dsn, "--secret-key-file", keys)
	if err != nil || !strings.Contains(out, "Values encrypted again: 1.") {
		t.Errorf("%v: %s", err, out)
	}
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	if out := run(read); !strings.HasPrefix(out, later+"|"+later) {
		t.Errorf("after the rotation: %q", out)
	}
	s.discard(id)
}

// command runs a maintenance command while the server runs.
func (s *server) command(args ...string) (string, error) {
	cmd := exec.CommandContext(s.Context(), env.binary, args...)
	cmd.Env = append(os.Environ(), "CODEHUB_DATA_DIR="+s.home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// search looks for secrets.
type search struct {
	*testing.T
	values map[string]string
}

// in reports a value in content, also in hexadecimal digits and in base64.
func (s search) in(what string, content []byte) {
	s.Helper()
	for name, value := range s.values {
		for _, form := range []string{value, hex.EncodeToString([]byte(value)), base64.StdEncoding.EncodeToString([]byte(value))[:len(value)]} {
			if bytes.Contains(content, []byte(form)) {
				s.Errorf("%s is in %s", name, what)
			}
		}
	}
}

// below looks through all files of a folder, and passes each of them to each.
func (s search) below(dir string, each func(name string, content []byte)) {
	s.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files++
		s.in(name, content)
		each(name, content)
		return nil
	})
	if err != nil || files == 0 {
		s.Errorf("%d files below %s: %v", files, dir, err)
	}
}

// copies counts a text in the memory of a process.
func copies(t *testing.T, pid int, text string) (n int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") {
			continue
		}
		buffer := make([]byte, to-from)
		got, _ := memory.ReadAt(buffer, from) // some pages cannot be read
		n += bytes.Count(buffer[:got], []byte(text))
	}
	return n
}

// secretKey makes a key file.
func secretKey(t *testing.T) string {
	t.Helper()
	keys := filepath.Join(scratch(t), "secret.key")
	line, err := exec.CommandContext(t.Context(), env.binary, "secret-key", "new").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keys, line, 0o600); err != nil {
		t.Fatal(err)
	}
	return keys
}
