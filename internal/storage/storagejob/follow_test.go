package storagejob

import (
	"fmt"
	"strings"
	"testing"
)

func TestOutputTail(t *testing.T) {
	t.Parallel()
	var w outputTail
	for i := range 1000 {
		w.add([]byte(fmt.Sprint("panic: line ", i)))
	}
	if s := w.String(); len(s) > 2000 || !strings.HasSuffix(s, "line 999") {
		t.Errorf("%d bytes, %q", len(s), s)
	}
	for output, want := range map[string]string{
		"":     "the storage job ended (exit code 137) without a result",
		"oops": "the storage job ended (exit code 137) without a result; it printed: oops",
	} {
		if got := (&NoResultError{Exit: 137, Output: output}).Error(); got != want {
			t.Error(got)
		}
	}
}
