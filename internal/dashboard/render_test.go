package dashboard

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/dashboard/catalogue"
	"codehub/internal/workspace"
)

const testID = workspace.ID("0198c0de-0000-7000-8000-000000000001")

var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// someWorkspace is a workspace at rest in a phase.
func someWorkspace(p workspace.Phase) workspace.Workspace {
	w := workspace.Workspace{
		ID: testID, OwnerID: "owner", Name: "my-project", Description: "A description", ImageRef: "codehub/workspace:latest",
		Phase: p, Operation: workspace.OpNone, PhaseChangedAt: testNow.Add(-5 * time.Minute), CreatedAt: testNow.Add(-48 * time.Hour),
		Home: workspace.Home{State: workspace.HomeLive}, DesiredState: workspace.DesiredStandby,
	}
	if p != workspace.PhaseArchived && p != workspace.PhasePending {
		w.Conditions = w.Conditions.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", testNow)
	}
	switch p {
	case workspace.PhaseRunning:
		w.DesiredState = workspace.DesiredRunning
		w.Conditions = w.Conditions.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", testNow)
	case workspace.PhaseArchived:
		w.DesiredState, w.Home.State, w.ArchiveKey = workspace.DesiredArchived, workspace.HomeAbsent, "key"
	case workspace.PhasePending:
		w.DesiredState, w.Home.State = workspace.DesiredArchived, workspace.HomeAbsent
	case workspace.PhaseError:
		w.ErrorReason, w.ErrorMessage = workspace.ErrTimeout, "deadline exceeded"
	case workspace.PhaseDeleting, workspace.PhaseDeleted:
		at := testNow.Add(-time.Minute)
		w.DeletedAt = &at
	}
	return w
}

// everyState calls f with every phase, operation, error, desired and queued
// state and request, deleted or not, that a row can hold.
func everyState(f func(workspace.Workspace)) {
	reasons := append([]workspace.ErrorReason{""}, workspace.ErrorReasons()...)
	desired := []workspace.DesiredState{workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning}
	queued := append([]workspace.DesiredState{"", workspace.DesiredDeleted}, desired...)
	for _, p := range workspace.Phases() {
		for _, op := range workspace.Operations() {
			if p == workspace.PhaseError && op != workspace.OpNone {
				continue // ERROR implies NONE (design §3.4)
			}
			for _, reason := range reasons {
				for _, d := range desired {
					for _, q := range queued {
						w := someWorkspace(p)
						w.Operation, w.ErrorReason, w.DesiredState, w.NextDesired = op, reason, d, q
						if op != workspace.OpNone {
							at := testNow.Add(-10 * time.Second)
							w.OpStartedAt = &at
						}
						if reason != "" && !reason.Final() {
							at := testNow.Add(20 * time.Second)
							w.ErrorCount, w.RetryAt, w.ErrorMessage = 1, &at, "connection refused"
						}
						f(w)
						if d == workspace.DesiredRunning && q == "" {
							at := testNow.Add(-time.Second)
							forced, cancelled, recovered := w, w, w
							forced.ForceStopRequestedAt, cancelled.CancelRequestedAt, recovered.RecoverRequestedAt = &at, &at, &at
							f(forced)
							f(cancelled)
							f(recovered)
						}
					}
				}
			}
		}
	}
}

// leak matches a catalogue's key, or fmt's complaint, where a text should be.
var leak = regexp.MustCompile(`%!|>[^<]*\b(state|action|problem|queued|request|reason|condition|step|wait|dialog|toast|message|stopped)\.[a-zA-Z_-]+`)

func renderPart(t *testing.T, s *pageSet, name string, data any) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.parts.ExecuteTemplate(&b, name, data); err != nil {
		t.Fatalf("%s in %s: %v", name, s.lang.Code, err)
	}
	if m := leak.FindString(b.String()); m != "" {
		t.Fatalf("%s in %s has %q where a text should be", name, s.lang.Code, m)
	}
	return b.String()
}

func TestEveryStateRendersWithAWayOut(t *testing.T) {
	t.Parallel()
	d := &Dashboard{Config: Config{DeleteGrace: 2 * time.Hour, Now: func() time.Time { return testNow }}}
	sets := parsePages(newAssets())
	n, looks := 0, map[string]bool{}
	everyState(func(w workspace.Workspace) {
		n++
		v := viewOf(w, fromList, 2*time.Hour, testNow)
		what := fmt.Sprintf("%s/%s error %q desired %s queued %q", w.Phase, w.Operation, w.ErrorReason, w.DesiredState, w.NextDesired)
		actions := slices.Concat(v.Actions, v.Menu)
		if v.Primary != nil {
			actions = append(actions, *v.Primary)
		}
		if v.Problem != nil {
			actions = append(actions, v.Problem.Actions...)
		}
		// What is being deleted ends by itself; everything else can be
		// changed by its owner.
		if len(actions) == 0 && v.Tone != toneBusy && w.Phase != workspace.PhaseDeleted && !(v.Deleted && v.State == "deleted") {
			t.Fatalf("%s: no way out", what)
		}
		if w.DeletedAt == nil && w.Operation != workspace.OpDeleting {
			if !slices.ContainsFunc(actions, func(a action) bool { return a.Key == "delete" }) {
				t.Fatalf("%s: cannot be deleted", what)
			}
		}
		for _, a := range actions {
			for _, l := range catalogue.Languages() {
				if !l.Has("action." + a.Key) {
					t.Fatalf("%s: no text for action %q", what, a.Key)
				}
			}
		}
		// States that look alike are rendered once, and by turns in each language.
		look := fmt.Sprint(v.State, v.Queued, v.Phase, v.Operation, v.Deleted, w.ErrorReason, v.Request, v.Primary, v.Actions, v.Menu)
		if looks[look] {
			return
		}
		looks[look] = true
		languages := catalogue.Languages()
		s := sets[languages[len(looks)%len(languages)].Code]
		if v.Deleted {
			renderPart(t, s, "gone", map[string]any{"V": v, "OOB": false})
		} else {
			renderPart(t, s, "card", map[string]any{"V": v, "OOB": false})
		}
		dv := d.detailOf(w)
		renderPart(t, s, "panel", dv)
		renderPart(t, s, "facts", dv)
		renderPart(t, s, "wait", waitView{view: viewOf(w, fromWait, 2*time.Hour, testNow), Kind: waitKind(w)})
	})
	if n < 1000 || len(looks) < 100 {
		t.Fatalf("only %d states with %d looks were tried", n, len(looks))
	}
}

func TestProblemsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason    workspace.ErrorReason
		container bool
		want      []string
	}{
		{workspace.ErrTimeout, false, []string{"recover", "delete"}},
		{workspace.ErrTimeout, true, []string{"recover", "stop", "delete"}},
		{workspace.ErrRetryExceeded, false, []string{"recover", "delete"}},
		{workspace.ErrImagePullFailed, false, []string{"recover", "delete"}},
		{workspace.ErrDataLost, false, []string{"recover_volume", "start-empty", "delete"}},
		{workspace.ErrArchiveCorrupted, false, []string{"recover", "start-empty", "delete"}},
		{workspace.ErrContainerWithoutVolume, true, []string{"recover", "stop", "delete"}},
	} {
		w := someWorkspace(workspace.PhaseError)
		w.ErrorReason = c.reason
		if c.container {
			w.Conditions = w.Conditions.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", testNow)
		}
		v := viewOf(w, fromList, time.Hour, testNow)
		var got []string
		for _, a := range v.Problem.Actions {
			got = append(got, a.Key)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s with container %v offers %v, want %v", c.reason, c.container, got, c.want)
		}
	}
}

func TestNamesAreEscaped(t *testing.T) {
	t.Parallel()
	w := someWorkspace(workspace.PhaseError)
	w.Name = `<script>alert(1)</script>" onmouseover="x`
	w.Description, w.Memo, w.ErrorMessage, w.ImageRef = w.Name, `</textarea>`+w.Name, `</pre><b>`+w.Name, w.Name
	d := &Dashboard{Config: Config{DeleteGrace: time.Hour, Now: func() time.Time { return testNow }}}
	for _, s := range parsePages(newAssets()) {
		v := viewOf(w, fromList, time.Hour, testNow)
		dv := d.detailOf(w)
		f := &form{Name: "delete", W: &v, Value: map[string]string{}, Errors: map[string]string{}}
		edit := &form{Name: "edit", W: &v, Value: map[string]string{"name": w.Name, "description": w.Name, "memo": w.Memo}, Errors: map[string]string{}}
		html := renderPart(t, s, "card", map[string]any{"V": v, "OOB": false}) + renderPart(t, s, "panel", dv) +
			renderPart(t, s, "facts", dv) + renderPart(t, s, "memo", dv) + renderPart(t, s, "form", f) + renderPart(t, s, "form", edit) +
			renderPart(t, s, "toast", &toast{Text: s.lang.T("toast.delete", w.Name)}) + announcement(s.lang, v)
		for _, bad := range []string{"<script>", `" onmouseover="x`, "</textarea><", "</pre><b>"} {
			if strings.Contains(html, bad) {
				t.Errorf("%s: %q stands in the page as it is", s.lang.Code, bad)
			}
		}
		if !strings.Contains(html, "&lt;script&gt;") {
			t.Errorf("%s: the name is not in the page", s.lang.Code)
		}
	}
}
