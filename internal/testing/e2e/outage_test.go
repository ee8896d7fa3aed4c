package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
)

// Docker stops for 30 s while workspaces run, start and are created. No
// workspace is in ERROR, and all are RUNNING afterwards.
func TestWorkspacesSurviveDockerOutage(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	t.Run("stopped", func(t *testing.T) {
		e := dockertest.Start(t, dockertest.Options{Image: env.testImage, Cleanup: cleanup})
		testDockerOutage(t, e, func() { e.End(syscall.SIGTERM) }, e.Start)
	})
	t.Run("hangs", func(t *testing.T) { // it accepts requests and does not answer
		e := dockertest.Start(t, dockertest.Options{Image: env.testImage, Cleanup: cleanup})
		t.Cleanup(func() { e.Signal(syscall.SIGCONT) }) // runs before the daemon's own cleanup
		testDockerOutage(t, e, func() { e.Signal(syscall.SIGSTOP) }, func() { e.Signal(syscall.SIGCONT) })
	})
}

func testDockerOutage(t *testing.T, e *dockertest.Daemon, begin, end func()) {
	s := start(t, "DOCKER_HOST="+e.Host, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")
	standby := "STANDBY"
	var running []string
	for i := range 3 {
		running = append(running, s.create(api.CreateWorkspace{Name: fmt.Sprint("running", i)}))
	}
	stopped := s.create(api.CreateWorkspace{Name: "stopped", DesiredState: &standby})
	for _, id := range running {
		s.awaitPhase(id, "RUNNING")
	}
	s.awaitPhase(stopped, "STANDBY")
	s.write(running[0], "work")

	begin()
	down := time.Now()
	s.setDesired(stopped, "RUNNING") // a start and a creation during the outage
	created := s.create(api.CreateWorkspace{Name: "created in the outage"})
	all := append(running, stopped, created)
	for time.Since(down) < 30*time.Second {
		for _, id := range all {
			w, err := s.api.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if w.Phase == "ERROR" || w.ErrorCount != 0 {
				t.Fatalf("%s is %s (%s: %s, %d)", w.Name, w.Phase, str(w.ErrorReason), str(w.ErrorMessage), w.ErrorCount)
			}
		}
		time.Sleep(time.Second)
	}
	// The server keeps serving and reports the outage.
	resp, err := http.Get(s.URL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || !strings.Contains(string(b), `"docker":"failed"`) {
		t.Errorf("/readyz without Docker: %d %s %v", resp.StatusCode, b, err)
	}
	if !strings.Contains(string(b), `"engine":"open"`) && !strings.Contains(string(b), `"engine":"half-open"`) {
		t.Errorf("the circuit breaker of Docker: %s", b)
	}
	end()
	for _, id := range all {
		if w := s.awaitPhase(id, "RUNNING"); w.ErrorCount != 0 {
			t.Errorf("%s: %d failures, %s", w.Name, w.ErrorCount, str(w.ErrorMessage))
		}
	}
	// The first observation after the outage may still be pending. It finds
	// the containers stopped and starts them again.
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if code, _ := s.ide("GET", running[0], "/healthz", ""); code == http.StatusOK {
			break
		}
	}
	s.expect(running[0], "work")
}
