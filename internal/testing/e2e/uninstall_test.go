package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// uninstall runs `codehub uninstall` with typed as its input.
func (s *server) uninstall(settings []string, typed string, flags ...string) (output string, code int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, env.binary, append([]string{"uninstall"}, flags...)...)
	cmd.Env = append(os.Environ(), append([]string{"CODEHUB_DATA_DIR=" + s.home}, settings...)...)
	cmd.Stdin = strings.NewReader(typed)
	out, err := cmd.CombinedOutput()
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		s.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// inDocker counts the installation's resources in Docker.
func (s *server) inDocker(id string) (containers, volumes, networks, images int) {
	s.Helper()
	f := client.Filters{}.Add("label", proc.Label(id))
	cs, err := s.docker.ContainerList(s.Context(), client.ContainerListOptions{All: true, Filters: f})
	if err != nil {
		s.Fatal(err)
	}
	vs, err := s.docker.VolumeList(s.Context(), client.VolumeListOptions{Filters: f})
	if err != nil {
		s.Fatal(err)
	}
	ns, err := s.docker.NetworkList(s.Context(), client.NetworkListOptions{Filters: f})
	if err != nil {
		s.Fatal(err)
	}
	is, err := s.docker.ImageList(s.Context(), client.ImageListOptions{Filters: f})
	if err != nil {
		s.Fatal(err)
	}
	return len(cs.Items), len(vs.Items), len(ns.Items), len(is.Items)
}

// Uninstall refuses while a server runs, and asks before it removes anything. The
// removal of homes needs a confirmation of its own.
func TestUninstallAsksBeforeRemoval(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	settings := []string{"CODEHUB_DATABASE_URL=" + database(t)}
	s := start(t, settings...)
	ws := s.createDesired("one", "RUNNING")
	s.awaitPhase(ws, "RUNNING")
	id := s.Installation()

	refused := func(why, typed string, flags ...string) {
		t.Helper()
		output, code := s.uninstall(settings, typed, flags...)
		if code != 1 || !strings.Contains(output, why) {
			t.Errorf("uninstall %v with the input %q: exit code %d, %s", flags, typed, code, output)
		}
		if c, v, n, i := s.inDocker(id); c == 0 || v == 0 || n == 0 || i == 0 {
			t.Fatalf("uninstall %v removed something: %d containers, %d volumes, %d networks, %d images are left", flags, c, v, n, i)
		}
	}
	refused("stop it first", "", "--yes")
	refused("stop it first", "", "--yes", "--installation", id)

	s.Stop()
	<-s.Done()
	refused("was not confirmed", "")
	refused("was not confirmed", ws+"\n")
	refused("removal of homes was not confirmed", "", "--yes", "--homes")
	refused("removal of homes was not confirmed", id+"\nyes\n", "--homes")
	if output, code := s.uninstall(settings, "", "--dry-run"); code != 0 || !strings.Contains(output, "ws-"+ws+"-home") || !strings.Contains(output, s.home) {
		t.Errorf("dry run: %d, %s", code, output)
	}
	if output, code := s.uninstall(nil, "", "--dry-run"); code != 2 || !strings.Contains(output, "--installation") {
		t.Errorf("without a database: %d, %s", code, output)
	}

	output, code := s.uninstall(settings, id+"\n")
	if code != 0 || !strings.Contains(output, "Homes and set-aside volumes kept: 1.") {
		t.Errorf("uninstall: %d, %s", code, output)
	}
	if c, v, n, i := s.inDocker(id); c != 0 || v != 2 || n != 0 || i != 0 { // the home and the record that it is complete
		t.Errorf("left: %d containers, %d volumes, %d networks, %d images: %s", c, v, n, i, output)
	}
	if s.homeFolder(ws) == "" {
		t.Error("the home was removed")
	}
	// The server starts again with the kept homes.
	s.restart()
	s.awaitPhase(ws, "RUNNING")
	s.Stop()
	<-s.Done()

	// Without its database, and with homes.
	output, code = s.uninstall(nil, "remove homes\n", "--installation", id, "--yes", "--homes")
	if code != 0 {
		t.Errorf("uninstall with homes: %d, %s", code, output)
	}
	if c, v, n, i := s.inDocker(id); c != 0 || v != 0 || n != 0 || i != 0 {
		t.Errorf("left: %d containers, %d volumes, %d networks, %d images: %s", c, v, n, i, output)
	}
	if output, code = s.uninstall(nil, "", "--installation", id, "--yes"); code != 0 {
		t.Errorf("uninstall of a removed installation: %d, %s", code, output)
	}
}
