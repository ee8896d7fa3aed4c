package archive

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestMeta(t *testing.T) {
	t.Parallel()
	const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	want := metaOf(Stats{Entries: 3, Bytes: 20, Skipped: 1, Size: 10, SHA256: sum})
	good, err := want.Encode()
	check(t, err)
	got, err := ReadMeta(bytes.NewReader(good))
	check(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read otherwise than written:\n%s", diff)
	}
	replace := func(old, with string) string {
		changed := strings.Replace(string(good), old, with, 1)
		if changed == string(good) {
			t.Fatalf("there is no %s in %s", old, good)
		}
		return changed
	}
	for name, bad := range map[string]string{
		"empty":              "",
		"null":               "null",
		"cut short":          string(good[:len(good)/2]),
		"trailing data":      string(good) + "{}",
		"other format":       replace(Format, "home.tar.zst/2"),
		"negative":           replace(`"bytes": 20`, `"bytes": -20`),
		"no size":            replace(`"size": 10`, `"size": 0`),
		"fraction":           replace(`"size": 10`, `"size": 10.5`),
		"digest too short":   replace(sum, sum[:62]),
		"digest in capitals": replace(sum, strings.ToUpper(sum)),
		"no workspace":       replace("0190-ws", ""),
		"no owner":           replace("alice", ""),
		"no operation":       replace("0190-op", ""),
		"no time":            replace("2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z"),
		"endless":            string(good) + strings.Repeat(" ", maxMeta),
	} {
		if m, err := ReadMeta(strings.NewReader(bad)); !errors.Is(err, ErrCorrupted) {
			t.Errorf("%s: %v, %v, want ErrCorrupted", name, m, err)
		}
	}
	newer := replace("{", `{"fingerprint": "x", "of a newer version": {"format": ["home.tar.zst/3"]},`)
	if got, err := ReadMeta(strings.NewReader(newer)); err != nil {
		t.Errorf("fields of a newer version: %v", err)
	} else if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields of a newer version change the others:\n%s", diff)
	}
	if _, err := ReadMeta(strings.NewReader(replace(Format, "home.tar.zst/2"))); err == nil || !strings.Contains(err.Error(), "newer version") {
		t.Errorf("another format: %v", err)
	}
	fault := errors.New("line cut")
	if _, err := ReadMeta(iotest.ErrReader(fault)); !errors.Is(err, fault) || errors.Is(err, ErrCorrupted) {
		t.Errorf("a reader that fails: %v", err)
	}
	want.Owner = ""
	if _, err := want.Encode(); err == nil {
		t.Error("Encode took a meta without an owner")
	}
}
