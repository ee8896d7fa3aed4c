package server

import (
	"errors"
	"testing"

	"codehub/internal/base/setting"
)

func TestServeRefusesUnknownVariable(t *testing.T) {
	t.Setenv("CODEHUB_LISTN", "127.0.0.1:8080")
	var problem *setting.Problem
	if err := new(Command).Run(t.Context()); !errors.As(err, &problem) || problem.Setting != "CODEHUB_LISTN" {
		t.Errorf("%v", err)
	}
}
