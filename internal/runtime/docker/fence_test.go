package docker

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"codehub/internal/runtime"
)

type roundTrips int

func (n *roundTrips) RoundTrip(*http.Request) (*http.Response, error) {
	*n++
	return nil, http.ErrServerClosed
}

// Nothing of a caller that may not act any more reaches the engine, whatever
// becomes of its context; what says so is not taken for an answer of the engine.
func TestFencedCallsAreNotSent(t *testing.T) {
	t.Parallel()
	var sent roundTrips
	over := errors.New("the term is over")
	may := error(nil)
	ctx := context.WithoutCancel(runtime.WithFence(t.Context(), func() error { return may }))
	call := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://engine/containers/x", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = (&http.Client{Transport: fenced{&sent}}).Do(req)
		return failed(ctx, "remove the container", err)
	}
	if err := call(); !errors.Is(err, http.ErrServerClosed) || sent != 1 {
		t.Fatalf("%v, %d sent", err, sent)
	}
	may = over
	if err := call(); !errors.Is(err, over) || !errors.Is(err, runtime.ErrUnreachable) || sent != 1 {
		t.Errorf("%v, %d sent", err, sent)
	}
}

// Nor does it change a home in a folder, which is no call to the engine.
func TestFencedFoldersStay(t *testing.T) {
	t.Parallel()
	r := &Runtime{cfg: Config{Installation: "i", DataDir: t.TempDir()}}
	spec := runtime.VolumeSpec{Workspace: newHome().Workspace, Claim: "c"}
	over := errors.New("the term is over")
	may := error(nil)
	ctx := context.WithoutCancel(runtime.WithFence(t.Context(), func() error { return may }))
	edits, removals := 0, 0
	edit := func() error {
		return r.editFolder(ctx, spec, func(side sidecar, _ bool) (sidecar, error) {
			edits++
			side.Claim = "c"
			return side, nil
		})
	}
	remove := func() error {
		return r.withFolder(ctx, spec.Workspace, "c", func(sidecar, bool) error { removals++; return nil })
	}
	if err := errors.Join(edit(), remove()); err != nil || edits != 1 || removals != 1 {
		t.Fatalf("%v, %d edits, %d removals", err, edits, removals)
	}
	may = over
	for _, err := range []error{edit(), remove()} {
		if !errors.Is(err, over) {
			t.Error(err)
		}
	}
	if edits != 1 || removals != 1 {
		t.Errorf("%d edits, %d removals", edits, removals)
	}
}
