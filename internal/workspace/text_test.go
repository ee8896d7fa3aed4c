package workspace

import "testing"

func TestVisible(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"a": true, "한": true, " x ": true, "👩\u200d💻": true, "e\u0301": true, "\u3164x": true, "क\u093f": true,
		"": false, " ": false, "\u3164": false, "\u115f\u1160": false, "\uffa0": false, "\u200b\u200d": false, "\u2060\ufeff": false,
		"\u202e\u2066": false, "\u0301": false, "\u20dd": false, "\u00a0\u2003\u3000": false, "\u2800": false, "\ufe0f": false, "\u00ad": false,
		"\u0378": false, "\U000e0041": false, "\ue000": false, "\xff": true, // shown as U+FFFD
	} {
		if got := Visible(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
