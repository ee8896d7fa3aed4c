package engine

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

// Calls of a fenced caller do not reach Docker, and their error is not mistaken for Docker's
// response.
func TestFencedCallsAreNotSent(t *testing.T) {
	t.Parallel()
	var sent roundTrips
	over := errors.New("the term is over")
	may := error(nil)
	ctx := context.WithoutCancel(runtime.WithFence(t.Context(), func() error { return may }))
	call := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://engine/containers/x", strings.NewReader("body"))
		check(t, err)
		_, err = (&http.Client{Transport: fenced{&sent}}).Do(req)
		return WrapError(ctx, "remove the container", err)
	}
	if err := call(); !errors.Is(err, http.ErrServerClosed) || sent != 1 {
		t.Fatalf("%v, %d sent", err, sent)
	}
	may = over
	if err := call(); !errors.Is(err, over) || !errors.Is(err, runtime.ErrUnreachable) || sent != 1 {
		t.Errorf("%v, %d sent", err, sent)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
