package vscode

import (
	"testing"

	"codehub/internal/bus/activity"
)

// Short messages of a protocol that is not VS Code's count as typed, long ones only as
// activity, and neither does what cannot be decoded.
func TestTyped(t *testing.T) {
	t.Parallel()
	var touched, typed int
	w := New(Options{Touch: func(activity.Kind) { touched++ }, Typed: func() { typed++ }})
	defer w.Close()
	w.Client([]byte{0x81, 0x81, 0, 0, 0, 0, 'x'})
	if touched != 1 || typed != 1 {
		t.Errorf("a short message: %d activities, typed %d times", touched, typed)
	}
	w.Client(append([]byte{0x82, 0xfe, 0x10, 0x00, 0, 0, 0, 0}, make([]byte, maxTyped)...))
	if touched < 2 || typed != 1 {
		t.Errorf("a long message: %d activities, typed %d times", touched, typed)
	}
	w.Client([]byte{0x81, 0x01, 'x'}) // not masked
	before := touched
	w.Client([]byte("more"))
	if touched != before+1 || typed != 1 {
		t.Errorf("what cannot be decoded: %d activities, typed %d times", touched-before, typed)
	}
}
