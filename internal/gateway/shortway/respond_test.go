package shortway

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

const large = 16 << 20

// filling is a body that fills every buffer, and notes the largest.
type filling struct {
	r             *rand.ChaCha8
	left, largest int
}

func newFilling(n int) *filling { return &filling{r: rand.NewChaCha8([32]byte{1}), left: n} }

func (f *filling) Read(p []byte) (int, error) {
	f.largest = max(f.largest, len(p))
	if f.left == 0 {
		return 0, io.EOF
	}
	n, _ := f.r.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, nil
}

// limitedWriter fails after a number of bytes, and notes the largest write.
type limitedWriter struct {
	*httptest.ResponseRecorder
	left, largest int
}

var errBroken = errors.New("the connection broke")

func (w *limitedWriter) Write(p []byte) (int, error) {
	w.largest = max(w.largest, len(p))
	if w.left -= len(p); w.left < 0 {
		return 0, errBroken
	}
	return w.ResponseRecorder.Write(p)
}

// Not parallel: no other body is copied meanwhile.
func TestLargeBuffers(t *testing.T) {
	for _, test := range []struct {
		name        string
		size, taken int // taken: buffers of other users
		own         int // buffers of the user
		clientReads int
		largest     int // buffer
		err         error
	}{
		{"small body", largeBody / 2, 0, 0, large, bufferSize, nil},
		{"large body", large, 0, 0, large, largeBufferSize, nil},
		{"client leaves", large, 0, 0, large / 2, largeBufferSize, errBroken},
		{"last buffer", large, maxLargeBuffers - 1, 0, large, largeBufferSize, nil},
		{"no buffer is free", large, maxLargeBuffers, 0, large, bufferSize, nil},
		{"last buffer of the user", large, 0, maxLargePerUser - 1, large, largeBufferSize, nil},
		{"the user has taken all", large, 0, maxLargePerUser, large, bufferSize, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			user := &atomic.Int32{}
			for range test.taken {
				other := &atomic.Int32{}
				defer largeBuffers.put(largeBuffers.get(other), other)
			}
			for range test.own {
				defer largeBuffers.put(largeBuffers.get(user), user)
			}
			body := newFilling(test.size)
			w := &limitedWriter{ResponseRecorder: httptest.NewRecorder(), left: test.clientReads}
			if err := copyBody(w, body, user); !errors.Is(err, test.err) {
				t.Fatal(err)
			}
			want, _ := io.ReadAll(newFilling(test.size))
			if got := w.Body.Bytes(); !bytes.Equal(got, want[:min(test.size, test.clientReads)]) {
				t.Errorf("%d bytes differ", len(got))
			}
			if body.largest != test.largest || w.largest > bufferSize {
				t.Errorf("the largest read is %d, the largest write %d", body.largest, w.largest)
			}
			if taken := len(largeBuffers.taken); taken != test.taken+test.own || int(user.Load()) != test.own {
				t.Errorf("%d buffers are taken, %d by the user", taken, user.Load())
			}
		})
	}
}
