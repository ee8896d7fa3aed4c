package home

import (
	"testing"

	"codehub/internal/workspace"
)

func TestReadUserMap(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"         0     100000      65536\n": "1000-65535",
		"0 1000 1\n1 100000 65536\n":         "1000-65536",
		"0 0 4294967295\n":                   "1000-4294967294",
		"0 100000 2000\n5000 300000 1000\n":  "1000-1999, 5000-5999",
		"":                                   "",
		"0 1\n":                              "",
		"no map\n":                           "",
	} {
		ranges, err := readUserMap(text)
		if got := (userMap{ranges: ranges}).String(); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	m := userMap{ranges: []workspace.UIDRange{{First: 0, Last: 65535}}}
	if m.contains(65536) || !m.contains(65535) || !m.contains(1000) {
		t.Error("the map contains other uids")
	}
}
