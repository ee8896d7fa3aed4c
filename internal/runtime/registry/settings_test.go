package registry_test

import (
	"errors"
	"slices"
	"testing"

	"codehub/internal/base/setting"
	"codehub/internal/runtime/registry"
)

func TestSettings(t *testing.T) {
	s := registry.Settings{PlainList: "R.example.com:5000", PrivateList: "p.example.com, "}
	if err := s.Resolve(); err != nil || !slices.Equal(s.Plain, []string{"r.example.com:5000"}) || !slices.Equal(s.Private, []string{"r.example.com:5000", "p.example.com"}) {
		t.Errorf("%+v, %v", s, err)
	}
	s = registry.Settings{PrivateList: "https://r.example.com"}
	var problem *setting.Problem
	if err := s.Resolve(); !errors.As(err, &problem) || problem.Setting != "CODEHUB_PRIVATE_REGISTRIES" {
		t.Errorf("a wrong setting: %v", err)
	}
}
