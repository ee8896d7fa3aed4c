package store

import (
	"net/url"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// The signatures of parts equal the client's, for all kinds of buckets and credentials.
func TestPartSigner(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"s3://the-bucket/pre/fix?region=eu-central-1",
		"s3://the-bucket?region=us-east-1&endpoint=http://127.0.0.1:9000&path-style=true",
		"s3://the-bucket/p?region=x&endpoint=https://s3.example&path-style=false",
	} {
		for _, token := range []string{"", "a token/with+odd=characters&"} {
			u, err := url.Parse(raw)
			check(t, err)
			s, err := newS3(u, credentials.NewStaticV4("AKIA", "secret+/=", token))
			check(t, err)
			upload := "an upload/id+with=odd&partNumber=1&characters~"
			first, err := s.presignPart(t.Context(), "ws/op/home.tar.zst", upload, 1, time.Hour)
			check(t, err)
			signer := s.partSigner(first)
			if signer == nil {
				t.Errorf("%s: the client signs otherwise", raw)
				continue
			}
			for _, n := range []int{1, 2, 10, 9999, 10_000} {
				want, err := s.presignPart(t.Context(), "ws/op/home.tar.zst", upload, n, time.Hour)
				check(t, err)
				date := func(s string) string {
					u, err := url.Parse(s)
					check(t, err)
					return u.Query().Get("X-Amz-Date")
				}
				if got := signer.sign(n); got != want && date(got) == date(want) {
					t.Errorf("part %d:\n%s, want\n%s", n, got, want)
				}
			}
			other, err := newS3(u, credentials.NewStaticV4("AKIA", "another", token))
			check(t, err)
			if other.partSigner(first) != nil {
				t.Error("it signs with credentials that the client does not have")
			}
		}
	}
}
