package workspace_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
)

var (
	then = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now  = then.Add(time.Hour)
)

func TestConditionsBeforeTheFirstObservation(t *testing.T) {
	t.Parallel()
	var none workspace.Conditions
	for _, c := range []workspace.ConditionType{workspace.VolumeReady, workspace.ArchiveReady, workspace.ContainerReady} {
		if got := none.Get(c); got.True() || got.Reason != workspace.ReasonNotObserved {
			t.Errorf("%s: %+v", c, got)
		}
	}
	if got := none.Get(workspace.Healthy); !got.True() || got.Reason != workspace.ReasonNotObserved {
		t.Errorf("healthy: %+v", got)
	}
	if none.HasContainer() {
		t.Error("a container that nobody has seen")
	}
}

func TestConditionTransitions(t *testing.T) {
	t.Parallel()
	c := workspace.Conditions{}.With(workspace.ContainerReady, false, workspace.ReasonNoContainer, "", then)
	for _, step := range []struct {
		name   string
		status bool
		reason string
		at     time.Time // of the last transition
	}{
		{"the reason alone", false, workspace.ReasonContainerStarting, then},
		{"the status", true, workspace.ReasonContainerReady, now},
		{"nothing", true, workspace.ReasonContainerReady, then},
	} {
		next := c.With(workspace.ContainerReady, step.status, step.reason, "m", now)
		got := next.Get(workspace.ContainerReady)
		want := workspace.Condition{Status: map[bool]string{true: "True", false: "False"}[step.status], Reason: step.reason, Message: "m", LastTransitionTime: step.at}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s changes (-want +got):\n%s", step.name, diff)
		}
		if before := c.Get(workspace.ContainerReady); before.Message != "" {
			t.Errorf("%s changes: the conditions it was made from have changed: %+v", step.name, before)
		}
		if step.name == "the status" {
			c = workspace.Conditions{}.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", then)
		}
	}
}

func TestConditionsEqual(t *testing.T) {
	t.Parallel()
	a := workspace.Conditions{}.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "m", then)
	for _, c := range []struct {
		name string
		b    workspace.Conditions
		want bool
	}{
		{"the same", a.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "m", now), true},
		{"at another time", workspace.Conditions{}.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "m", now), true},
		{"another status", a.With(workspace.VolumeReady, false, workspace.ReasonVolumeReady, "m", then), false},
		{"another reason", a.With(workspace.VolumeReady, true, "Other", "m", then), false},
		{"another message", a.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "n", then), false},
		{"one more", a.With(workspace.Healthy, true, workspace.ReasonHealthy, "", then), false},
		{"another type", workspace.Conditions{}.With(workspace.Healthy, true, workspace.ReasonVolumeReady, "m", then), false},
		{"none", nil, false},
	} {
		if got := a.Equal(c.b); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		if got := c.b.Equal(a); got != c.want {
			t.Errorf("%s, the other way round: %v", c.name, got)
		}
	}
}

func TestHasContainer(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{
		workspace.ReasonNoContainer:       false,
		workspace.ReasonNotObserved:       false,
		workspace.ReasonContainerExited:   true,
		workspace.ReasonContainerStarting: true,
		workspace.ReasonContainerReady:    true,
		workspace.ReasonNodeUnreachable:   true,
	} {
		c := workspace.Conditions{}.With(workspace.ContainerReady, reason == workspace.ReasonContainerReady, reason, "", then)
		if got := c.HasContainer(); got != want {
			t.Errorf("%s: %v", reason, got)
		}
	}
}

// What is stored of conditions and homes is read back by every later version.
func TestStoredForms(t *testing.T) {
	t.Parallel()
	conditions := workspace.Conditions{}.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "m", then)
	home := workspace.Home{State: workspace.HomeLive, Claim: "c", Marker: "k"}
	for _, c := range []struct {
		value any
		want  string
	}{
		{conditions, `{"storage.volume_ready":{"status":"True","reason":"Ready","message":"m","last_transition_time":"2026-01-01T12:00:00Z"}}`},
		{home, `{"state":"live","claim":"c","marker":"k"}`},
		{workspace.Home{State: workspace.HomeAbsent}, `{"state":"absent"}`},
		{workspace.Progress{Step: "pulling", Done: 1, Total: 2}, `{"step":"pulling","done":1,"total":2}`},
	} {
		got, err := json.Marshal(c.value)
		if err != nil || string(got) != c.want {
			t.Errorf("%s, %v; want %s", got, err, c.want)
		}
	}
	var back workspace.Conditions
	if err := json.Unmarshal([]byte(`{"storage.volume_ready":{"status":"True","reason":"Ready","message":"m","last_transition_time":"2026-01-01T12:00:00Z"}}`), &back); err != nil || !back.Equal(conditions) {
		t.Errorf("read back: %+v, %v", back, err)
	}
}
