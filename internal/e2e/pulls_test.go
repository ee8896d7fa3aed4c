package e2e

import (
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/dockertest"
	"codehub/internal/harness"
)

// as returns the server with the token of a new user.
func (s *server) as(username string) *server {
	s.Helper()
	const password = "a password of theirs"
	if _, err := s.api.CreateAccount(s.Context(), api.CreateAccount{Username: username, Password: password}); err != nil {
		s.Fatal(err)
	}
	return s.enterAs(username, password)
}

// enterAs returns the server with another user logged in.
func (s *server) enterAs(username, password string) *server {
	s.Helper()
	other := *s
	other.login(username, password)
	return &other
}

// A user's registry sends so slowly that the image's layers occupy all of Docker's
// downloads. Another user's small image is pulled nevertheless, and the slow pull ends
// with a reason of its own.
func TestSlowRegistryDelaysNoOtherUser(t *testing.T) {
	t.Parallel()
	e := dockertest.Start(t, dockertest.Options{Image: env.testImage, Cleanup: cleanup})
	registry := dockertest.NewRegistry(t)
	layers := dockertest.Layers(5, 4<<20, 100)
	slow := registry.Add("slow/image", layers)
	s := startQuick(t, "DOCKER_HOST="+e.Host, "CODEHUB_PULL_MIN_RATE=1m", "CODEHUB_DELETE_GRACE=0s")
	ann := s.as("ann")
	standby := "STANDBY"
	first := ann.create(api.CreateWorkspace{Name: "slow-one", ImageRef: slow, DesiredState: &standby})
	harness.Eventually(t, "Docker downloads three layers", func() bool { return dockertest.Sending(layers) == 3 })
	small := registry.Add("small/image", dockertest.Layers(1, 300<<10, 0))
	second := s.create(api.CreateWorkspace{Name: "small", ImageRef: small, DesiredState: &standby})
	s.withPatience(2*time.Minute).awaitPhase(second, "STANDBY")
	w := ann.await(first, "ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	if str(w.ErrorReason) != "ImagePullTooSlow" || !strings.Contains(str(w.ErrorMessage), "KiB per second") {
		t.Errorf("%s: %s", str(w.ErrorReason), str(w.ErrorMessage))
	}
	s.remove(second)
	ann.remove(first)
}
