package helper

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLines(t *testing.T) {
	t.Parallel()
	for _, step := range []int{1, 2, 3, 7, 100} {
		var got []string
		l := &lines{max: 5, line: func(b []byte) { got = append(got, string(b)) }, tooLong: func() { got = append(got, "too long") }}
		text := []byte("one\n\n12345\n123456\ntwo\nunfinished")
		for part := range slices.Chunk(text, step) {
			if n, err := l.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if diff := cmp.Diff([]string{"one", "", "12345", "too long", "two"}, got); diff != "" {
			t.Errorf("in steps of %d (-want +got):\n%s", step, diff)
		}
	}
}
