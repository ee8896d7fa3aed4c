package home

import (
	"context"
	"errors"
	"testing"

	"codehub/internal/runtime"
)

// A fenced caller does not change a local-dir home either, which needs no call to
// Docker.
func TestFencedCallerChangesNoFolder(t *testing.T) {
	t.Parallel()
	r := newHomes(t, offline, Config{}, nil)
	spec := runtime.VolumeSpec{Workspace: newID(), Claim: "c"}
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
