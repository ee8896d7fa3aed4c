package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Every call fails if the bucket begins a response and then sends nothing, and
// its connection is closed.
func TestS3StalledResponse(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusNotFound} {
		for name, call := range map[string]func(ctx context.Context, s *S3) error{
			"Put":             func(ctx context.Context, s *S3) error { _, err := s.Put(ctx, "k", strings.NewReader("x")); return err },
			"Delete":          func(ctx context.Context, s *S3) error { return s.Delete(ctx, "k") },
			"AbortIncomplete": func(ctx context.Context, s *S3) error { _, err := s.AbortIncomplete(ctx, "", 0, nil); return err },
			"List": func(ctx context.Context, s *S3) error {
				for _, err := range s.List(ctx, "") {
					return err
				}
				return nil
			},
			"Get": func(ctx context.Context, s *S3) error {
				r, err := s.Get(ctx, "k", 0)
				if err != nil {
					return err
				}
				defer r.Close()
				_, err = io.ReadAll(r)
				return err
			},
		} {
			if status == http.StatusOK && name != "AbortIncomplete" && name != "List" {
				continue // Put and Delete need no body, and Get resumes
			}
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				t.Parallel()
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Type", "application/xml")
					w.WriteHeader(status)
					fmt.Fprint(w, `<?xml version="1.0"?><ListBucketResult><Name>bucket</Name>`)
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				}))
				defer server.Close() // it waits until the client has closed every connection in use
				u, err := url.Parse("s3://bucket/p?region=x&path-style=true&endpoint=" + server.URL)
				check(t, err)
				s, err := newS3Over(u, credentials.NewStaticV4("a", "b", ""), nil, 100*time.Millisecond)
				check(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // only a call that hangs takes so long
				defer cancel()
				if err := call(ctx, s); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "sent no data for 100ms") {
					t.Error(err)
				}
			})
		}
	}
}
