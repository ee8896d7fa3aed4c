package program

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"
)

// The digest is that of the content. Without make build there is neither.
func TestDigest(t *testing.T) {
	t.Parallel()
	want := ""
	if in, err := Open(); err == nil {
		sum := sha256.New()
		if _, err := io.Copy(sum, in); err != nil {
			t.Fatal(err)
		}
		want = hex.EncodeToString(sum.Sum(nil))
	}
	if got, err := Digest(); err != nil || got != want {
		t.Errorf("digest %q, %v; want %q", got, err, want)
	}
}
