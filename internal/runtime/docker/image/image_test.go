package image

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
)

// Only Docker's own disk counts; a registry's message does not.
func TestPullOntoFullDisk(t *testing.T) {
	t.Parallel()
	for message, full := range map[string]bool{
		"write /var/lib/docker/tmp/GetImageBlob1: no space left on device":                                       true,
		"failed to register layer: Error processing tar file(exit status 1): write /a: no space left on device":  true,
		"unknown: no space left on device":                                                                       false,
		"toomanyrequests: write /a: no space left on device":                                                     false,
		"failed to register layer: Error processing tar file(exit status 1): lchown /a: operation not permitted": false,
	} {
		err := pullFailed(t.Context(), "image", errors.New(message))
		var pull *runtime.PullError
		if errors.Is(err, runtime.ErrNoSpace) != full || errors.As(err, &pull) == full {
			t.Errorf("%q: %v", message, err)
		}
	}
}

// A pull that fails says what to do before what Docker says.
func TestFailedPullSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"dial tcp: lookup r.example.com on 127.0.0.53:53: no such host": fmt.Sprintf(runtime.MsgNoRegistry, "r.example.com"),
		"manifest unknown: manifest tagged by \"1\" is not found":       fmt.Sprintf(runtime.MsgNoImage, "r.example.com"),
		"failed to register layer: archive/tar: invalid tar header":     "",
	} {
		var pull *runtime.PullError
		err := login{}.refusal("r.example.com/a:1", &runtime.PullError{Image: "r.example.com/a:1", Message: raw})
		if !errors.As(err, &pull) || pull.Message != strings.TrimSpace(want+" "+raw) {
			t.Errorf("%s: %v", raw, err)
		}
		if gone := gone(err); gone != strings.HasPrefix(raw, "manifest") {
			t.Errorf("%s: the image is gone: %v", raw, gone)
		}
	}
}

// The image's name determines which server Docker contacts, including services on
// this host. Their responses must not be shown to the user.
func TestPullErrorHidesServerResponse(t *testing.T) {
	t.Parallel()
	r := newImages(t, engine.Config{Log: harness.Logger(t, slog.LevelDebug)}, Config{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "hunter2\nhunter2", http.StatusNotFound)
	}))
	t.Cleanup(srv.Close)
	err := r.pull(t.Context(), srv.Listener.Addr().String()+"/some/image:latest", "ann", nil)
	var pull *runtime.PullError
	if !errors.As(err, &pull) || strings.Contains(err.Error(), "hunter2") || !strings.Contains(pull.Message, "404") {
		t.Fatalf("error = %v", err)
	}
}

func TestPullProgress(t *testing.T) {
	t.Parallel()
	var l layers
	for i, step := range []struct {
		id          string
		unpacking   bool
		done, total int64
		changed     bool
		wantDone    int64
		wantTotal   int64
	}{
		{"a", false, 10, 100, true, 10, 100},
		{"b", false, 0, 50, true, 10, 150},
		{"b", false, 0, 50, false, 10, 150},
		{"a", false, 100, 100, true, 100, 150},
		{"b", false, 40, 50, true, 140, 150},
		{"b", false, 20, 50, false, 140, 150}, // a retry starts from zero; the sum does not decrease
		{"b", true, 1, 50, true, 150, 150},
		{"b", true, 30, 50, false, 150, 150},
		{"c", false, 5, 0, false, 150, 150}, // size unknown
	} {
		if got := l.update(step.id, step.unpacking, step.done, step.total); got != step.changed || l.done != step.wantDone || l.total != step.wantTotal {
			t.Fatalf("step %d: changed = %v, %d of %d", i, got, l.done, l.total)
		}
	}
}
