package workspace

import "testing"

func TestUIDRange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]UIDRange{
		"1500000-1999999": {1500000, 1999999}, " 1000 - 1000 ": {1000, 1000}, "1000-2147483647": {1000, 2147483647},
		"": {}, "1000": {}, "1000-": {}, "-1000": {}, "0-10": {}, "999-2000": {}, "2000-1999": {}, "a-b": {}, "1000-2147483648": {}, "1000-2000-3000": {},
	} {
		got, err := ParseUIDRange(text)
		if got != want || (err == nil) != (want != UIDRange{}) {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	r := UIDRange{1500000, 1500002}
	for offset, want := range []uint32{1500000, 1500001, 1500002, 1500000} {
		if got := r.Of(Workspace{UIDOffset: int64(offset)}); got != want {
			t.Errorf("workspace %d has the uid %d, want %d", offset, got, want)
		}
	}
}
