package store

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"codehub/internal/testing/s3test"
)

func TestS3Down(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t, "bucket")
	s := s3Store(t, server, "bucket/prefix")
	put(t, s, "a/b", []byte("x"))
	server.Stop()
	unavailableStore(t, s)
	check(t, server.Run())
	if got := read(t, s, "a/b", 0); string(got) != "x" {
		t.Errorf("it is back, and reads %q", got)
	}
	// A missing bucket proves nothing about its objects.
	check(t, os.Rename(server.BucketDir("bucket"), server.BucketDir("bucket")+"-away"))
	unavailableStore(t, s)
}

func TestS3Check(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "bucket")
	for name, c := range map[string]struct{ bucket, secret, want string }{
		"right":         {"bucket/check", server.SecretKey, ""},
		"no bucket":     {"none", server.SecretKey, "create the bucket"},
		"wrong secret":  {"bucket/check", "wrong", "bucket"},
		"no credential": {"bucket/check", "-", "no credentials"},
	} {
		u, err := url.Parse(server.URL(c.bucket))
		check(t, err)
		creds := credentials.NewStaticV4(server.AccessKey, c.secret, "")
		if c.secret == "-" {
			creds = credentials.NewChainCredentials(nil)
		}
		s, err := newS3(u, creds)
		check(t, err)
		err = s.Check(t.Context())
		if c.want == "" {
			check(t, err)
			if keys := keysOf(t, s, ""); len(keys) != 0 {
				t.Errorf("Check left %v", keys)
			}
			continue
		}
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", name, err, c.want)
		}
	}
}

// Two installations in one bucket are separate.
func TestS3Prefixes(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "bucket")
	one, other := s3Store(t, server, "bucket/one"), s3Store(t, server, "bucket/one-more")
	put(t, one, "ws/a", []byte("1"))
	put(t, other, "ws/a", []byte("2"))
	simulateCrash(t, other, "ws/half")
	if diff := cmp.Diff([]string{"ws/a"}, keysOf(t, one, "")); diff != "" {
		t.Error(diff)
	}
	if n, err := one.AbortIncomplete(t.Context(), "", 0, nil); n != 0 || err != nil {
		t.Errorf("%d of another's uploads aborted, %v", n, err)
	}
	check(t, one.Delete(t.Context(), "ws/a"))
	if got := read(t, other, "ws/a", 0); string(got) != "2" {
		t.Errorf("the other's object is %q", got)
	}
}

// More than one page.
func TestS3ListsAll(t *testing.T) {
	t.Parallel()
	s := s3Store(t, s3test.Share(t, "bucket"), "bucket/many")
	var want []string
	for i := range 1100 {
		want = append(want, fmt.Sprintf("ws/%04d", i))
		_, err := s.Put(t.Context(), want[i], strings.NewReader(""))
		check(t, err)
	}
	if diff := cmp.Diff(want, keysOf(t, s, "")); diff != "" {
		t.Error(diff)
	}
}
