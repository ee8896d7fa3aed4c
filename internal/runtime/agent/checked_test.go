package agent

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestHostileUsage(t *testing.T) {
	t.Parallel()
	for _, x := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64, -1} {
		u := Usage{CPUSeconds: x, CPULimit: x}.checked()
		for _, n := range []float64{u.CPUSeconds, u.CPULimit} {
			if !(n >= 0 && n <= maxProcessors*maxSeconds) {
				t.Errorf("%v became %v", x, n)
			}
		}
	}
	for _, since := range []int64{math.MinInt64, -1, maxSeconds + 1, math.MaxInt64} {
		u := Usage{Holders: []Holder{{What: "x", Since: since}}}.checked()
		if _, err := time.Unix(u.Holders[0].Since, 0).UTC().MarshalJSON(); err != nil {
			t.Errorf("%d: %v", since, err)
		}
	}
}

// Values from an agent's JSON are within the limits and printable, and can be encoded again.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"ports":[{"port":3000,"local":true,"process":"node","pid":7,"since":1764060000},{"port":-1}]}`))
	f.Add([]byte(`{"cpu_seconds":1e308,"memory":-1,"holders":[{"what":"\u001b[2J","since":9223372036854775807}]}`))
	f.Add([]byte(`{"code":256,"signal":"\u001b"}`))
	f.Add([]byte(`{"ports":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p portsAnswer
		var u Usage
		var e Exit
		if json.Unmarshal(raw, &p) != nil || json.Unmarshal(raw, &u) != nil || json.Unmarshal(raw, &e) != nil {
			return
		}
		plain := func(text string, most int) {
			if utf8.RuneCountInString(text) > most || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("the text %q", text)
			}
		}
		for i, port := range p.Ports {
			if port.Port < 1 || port.Port > 65535 || port.PID < 0 || port.Since < 0 || i > 0 && p.Ports[i-1].Port >= port.Port {
				t.Errorf("%+v", p.Ports)
			}
			plain(port.Process, maxProcess)
		}
		u = u.checked()
		for _, h := range u.Holders {
			plain(h.What, MaxWhat)
		}
		e = e.checked()
		plain(e.Signal, 16)
		if _, err := json.Marshal([]any{p, u, e}); err != nil || e.Code < 0 || e.Code > 255 {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

// The workspace's user may be the one who reports a setup.
func TestSetupStatusIsChecked(t *testing.T) {
	t.Parallel()
	step := StepStatus{
		Name: "a\x1b[31m\nb" + strings.Repeat("x", 5000), Kind: "clone\x00", State: "gone", Percent: 4000, Detail: "\u202e", Error: "fatal:\n\x1b]0;x\afailed",
		Log: strings.Repeat("y", 2*MaxStepLog) + "\n\tend\r", Started: -5, Ended: 1 << 62, Folder: "/home/\x07x",
	}
	s := SetupStatus{}
	for range 2 * MaxSteps {
		s.Steps = append(s.Steps, step)
	}
	got := s.checked()
	if len(got.Steps) != MaxSteps+1 {
		t.Errorf("%d steps", len(got.Steps))
	}
	first := got.Steps[0]
	if first.State != StepFailed || first.Percent != 100 || first.Kind != "clone" || first.Detail != "" || first.Error != "fatal:\n]0;xfailed" || first.Folder != "/home/x" ||
		first.Started != 0 || first.Ended != maxSeconds || len(first.Name) != maxStepText || !strings.HasPrefix(first.Name, "a[31m b") || !strings.HasSuffix(first.Log, "y\n end") || len(first.Log) > MaxStepLog {
		t.Errorf("%.2000v", first)
	}
}
