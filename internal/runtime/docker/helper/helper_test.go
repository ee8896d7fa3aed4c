package helper

import (
	"errors"
	"strings"
	"testing"

	"codehub/internal/runtime"
)

// A helper whose disk is full prints the kernel's text.
func TestHelperErrorOfFullDisk(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		`empty volume x: empty /volume: remove "a": "b": no space left on device`: true,
		`empty volume x: remove "no space left on device": permission denied`:     false,
	} {
		err := Failure(errors.New(message))
		if errors.Is(err, runtime.ErrNoSpace) != want || !strings.HasSuffix(err.Error(), message) {
			t.Errorf("%q: %v", message, err)
		}
	}
}
