package service

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	d := Defaults{CPUs: "2", Memory: "4g", Disk: "20g", OfferedSizes: " small=0.5:512m:500m, large=8:32g ,free=8:32g:0"}
	if err := d.sizes(); err != nil {
		t.Fatal(err)
	}
	small := workspace.Size{Name: "small", NanoCPUs: 5e8, Memory: 512 << 20, Disk: 500 << 20}
	usual := workspace.Size{Name: "default", NanoCPUs: 2e9, Memory: 4 << 30, Disk: 20 << 30}
	want := workspace.Sizes{Default: usual, Offered: []workspace.Size{small, {Name: "large", NanoCPUs: 8e9, Memory: 32 << 30, Disk: 20 << 30}, {Name: "free", NanoCPUs: 8e9, Memory: 32 << 30}}}
	if diff := cmp.Diff(want, d.Sizes); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]workspace.Size{"": usual, "small": small, "gone": usual} {
		if got := d.Sizes.Of(name); got != want {
			t.Errorf("%q gets %v, want %v", name, got, want)
		}
	}
	if !d.Sizes.Has("") || !d.Sizes.Has("large") || d.Sizes.Has("gone") || d.Sizes.Has("default") {
		t.Error("the wrong sizes may be chosen")
	}
}

func TestWrongSizes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"small", "small=1", "small=1:", "=1:1g", "Small=1:1g", "-a=1:1g", "a b=1:1g", "small=0:1g", "small=-1:1g", "small=NaN:1g", "small=1:10m",
		"small=1:1x", "small=5000:1g", "default=1:1g", "a=1:1g,a=2:2g", "a=1:1g;b=1:1g", "a=1:1g:5x", "a=1:1g:", "a=1:1g:1m", "a=1:1g:5g:5g",
		"abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz=1:1g",
	} {
		if sizes, err := parseSizes(text, 0); err == nil {
			t.Errorf("%q is accepted: %v", text, sizes)
		}
	}
}
