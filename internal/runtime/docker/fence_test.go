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
