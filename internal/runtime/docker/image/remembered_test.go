package image

import "testing"

// Images that a user makes up do not fill the memory of the server.
func TestImagesAreForgotten(t *testing.T) {
	t.Parallel()
	var r remembered[int, []byte]
	for i := range 1000 {
		r.put(i, make([]byte, 1))
		if _, ok := r.get(i); !ok || len(r.values) > maxRemembered {
			t.Fatalf("after %d images %d are kept", i+1, len(r.values))
		}
	}
}
