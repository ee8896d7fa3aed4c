package transfer_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/storage/transfer"
)

func TestFailStalled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send  func(w io.Writer, r *http.Request)
		pause time.Duration // of the reader, before each Read
		want  string        // error
	}{
		"slow bucket": {send: func(w io.Writer, _ *http.Request) {
			for range 10 {
				time.Sleep(59 * time.Second)
				fmt.Fprint(w, "x")
			}
		}},
		"slow reader": {pause: time.Hour, send: func(w io.Writer, _ *http.Request) {
			fmt.Fprint(w, strings.Repeat("x", 10))
		}},
		"stalled bucket": {want: "the bucket sent no data for 1m0s", send: func(w io.Writer, r *http.Request) {
			fmt.Fprint(w, "x")
			<-r.Context().Done()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(http.StatusOK)
					c.send(w, r)
				})
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://bucket/", nil)
				check(t, err)
				res, err := transfer.FailStalled(inProcess{handler}, 0).RoundTrip(req)
				check(t, err)
				n := 0
				for err == nil {
					time.Sleep(c.pause)
					var got int
					got, err = res.Body.Read(make([]byte, 1))
					n += got
				}
				check(t, res.Body.Close())
				switch {
				case c.want != "" && err.Error() != c.want:
					t.Errorf("the error is %q, want %q", err, c.want)
				case c.want == "" && (err != io.EOF || n != 10):
					t.Errorf("read %d bytes and %v, want all 10", n, err)
				}
			})
		})
	}
}
