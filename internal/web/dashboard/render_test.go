package dashboard

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/running/service"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

const testID = workspace.ID("0198c0de-0000-7000-8000-000000000001")

var (
	testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	// testPages are parsed once, for all tests.
	testPages = parsePages(embeddedAssets(), false, "Docker", func(language, key string) { panic("no " + language + " text " + key) })
	// tags matches markup.
	tags    = regexp.MustCompile(`<[^>]*>`)
	testTTL = workspace.TTL{Standby: 10 * time.Minute, Archive: 30 * time.Minute}
)

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

// everyState calls f with every combination of phase, operation, error, desired state, queued
// state, request and deletion that a row can have.
func everyState(f func(workspace.Workspace)) {
	reasons := append([]workspace.ErrorReason{""}, workspace.ErrorReasons()...)
	desired := []workspace.DesiredState{workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning}
	queued := append([]workspace.DesiredState{"", workspace.DesiredDeleted}, desired...)
	for _, p := range workspace.Phases() {
		for _, op := range workspace.Operations() {
			if p == workspace.PhaseError && op != workspace.OpNone {
				continue // ERROR implies NONE
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

// leak matches a catalogue key or a format error of fmt in place of a text.
var (
	leakWords = strings.Fields("state action problem queued request reason condition step wait dialog toast message why life used ttl admin person")
	leak      = regexp.MustCompile(`%!|>[^<]*\b(` + strings.Join(leakWords, "|") + `)\.[a-zA-Z_-]+`)
)

// leaked returns the matches of leak. The expression is slow, so it runs only on pages that may
// have a match.
func leaked(html string) string {
	may := strings.Contains(html, "%!")
	for _, word := range leakWords {
		may = may || strings.Contains(html, word+".")
	}
	if !may {
		return ""
	}
	return leak.FindString(html)
}

func renderPart(t *testing.T, s *pageSet, name string, data any) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.parts.ExecuteTemplate(&b, name, data); err != nil {
		t.Fatalf("%s in %s: %v", name, s.lang.Code, err)
	}
	if m := leaked(b.String()); m != "" {
		t.Fatalf("%s in %s has %q where a text should be", name, s.lang.Code, m)
	}
	return b.String()
}

func TestEveryStateHasAnAction(t *testing.T) {
	t.Parallel()
	d := &Dashboard{Config: Config{Settings: service.Settings{DeleteGrace: 2 * time.Hour}, Now: func() time.Time { return testNow }}}
	sets := testPages
	n, views := 0, map[string]bool{}
	everyState(func(w workspace.Workspace) {
		n++
		v := viewOf(w, fromList, terms{grace: 2 * time.Hour, ttl: testTTL, now: testNow})
		what := fmt.Sprintf("%s/%s error %q desired %s queued %q", w.Phase, w.Operation, w.ErrorReason, w.DesiredState, w.NextDesired)
		actions := slices.Concat(v.Actions, v.Menu)
		if v.Primary != nil {
			actions = append(actions, *v.Primary)
		}
		if v.Problem != nil {
			actions = append(actions, v.Problem.Actions...)
		}
		// A deletion finishes automatically; every other state can be changed by the owner.
		if len(actions) == 0 && v.Tone != toneBusy && w.Phase != workspace.PhaseDeleted && !(v.Deleted && v.State == "deleted") {
			t.Fatalf("%s: no action", what)
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
		// States with the same view are rendered once: in alternating languages, and
		// alternately on the list and on a page of their own, which use the same templates.
		shown := fmt.Sprint(v.State, v.Queued, v.Phase, v.Operation, v.Deleted, w.ErrorReason, v.Request, v.Primary, v.Actions, v.Menu)
		if views[shown] {
			return
		}
		views[shown] = true
		languages := catalogue.Languages()
		s := sets[languages[len(views)%len(languages)].Code]
		dv := d.detailOf(w)
		switch {
		case len(views)/2%2 == 0:
			renderPart(t, s, "panel", dv)
		case v.Deleted:
			renderPart(t, s, "gone", map[string]any{"V": v, "OOB": false})
		default:
			renderPart(t, s, "card", map[string]any{"V": v, "OOB": false})
		}
		if facts := fmt.Sprint(w.Phase, s.lang.Code); !views[facts] {
			views[facts] = true // they show the conditions alone
			renderPart(t, s, "facts", dv)
		}
		renderPart(t, s, "wait", waitView{view: viewOf(w, fromWait, terms{grace: 2 * time.Hour, ttl: testTTL, now: testNow}), Kind: waitKind(w)})
	})
	if n < 1000 || len(views) < 100 {
		t.Fatalf("only %d states with %d views were tried", n, len(views))
	}
}

// Each problem offers what helps, and nothing that gives up data that still exists.
func TestProblemsOfferActions(t *testing.T) {
	t.Parallel()
	container := func(w *workspace.Workspace) {
		w.Conditions = w.Conditions.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", testNow)
	}
	volume := func(ready bool, reason string) func(*workspace.Workspace) {
		return func(w *workspace.Workspace) {
			w.Conditions = w.Conditions.With(workspace.VolumeReady, ready, reason, "", testNow)
		}
	}
	home := func(state workspace.HomeState, key string) func(*workspace.Workspace) {
		return func(w *workspace.Workspace) { w.Home.State, w.ArchiveKey = state, key }
	}
	unhealthy := func(w *workspace.Workspace) {
		w.Conditions = w.Conditions.With(workspace.Healthy, false, workspace.ReasonContainerWithoutVolume, "", testNow)
	}
	// The error is a condition, and not yet the reason of the row.
	unrecorded := func(w *workspace.Workspace) {
		w.ErrorReason = ""
		w.Conditions = w.Conditions.With(workspace.Healthy, false, string(workspace.ErrDataLost), "gone", testNow)
	}
	for _, c := range []struct {
		reason  workspace.ErrorReason
		changes []func(*workspace.Workspace)
		want    string
	}{
		{workspace.ErrTimeout, nil, "Timeout recover delete"},
		{workspace.ErrTimeout, []func(*workspace.Workspace){container}, "Timeout recover stop delete"},
		{workspace.ErrRetryExceeded, nil, "RetryExceeded recover delete"},
		{workspace.ErrImagePullFailed, nil, "ImagePullFailed recover recover_image delete"},
		{workspace.ErrArchiveCorrupted, nil, "ArchiveCorrupted recover recover-archive start-empty delete"},
		{workspace.ErrContainerWithoutVolume, []func(*workspace.Workspace){container}, "ContainerWithoutVolume recover stop delete"},
		// The home goes with the container.
		{workspace.ErrContainerWithoutVolume, []func(*workspace.Workspace){container, volume(false, workspace.ReasonRemoving), unhealthy}, "Vanishing open stop delete"},
		// Another volume has the name of the home.
		{workspace.ErrRetryExceeded, []func(*workspace.Workspace){volume(false, workspace.ReasonForeignVolume)}, "Obstructed recover set-aside delete"},
		{workspace.ErrTimeout, []func(*workspace.Workspace){volume(false, workspace.ReasonForeignVolume)}, "Obstructed recover set-aside delete"},
		{workspace.ErrDataLost, []func(*workspace.Workspace){volume(false, workspace.ReasonForeignVolume)}, "DataLost recover_volume set-aside recover-archive start-empty delete"},
		// The archive is lost, but the volume that it was made from exists.
		{workspace.ErrDataLost, []func(*workspace.Workspace){home(workspace.HomeArchived, "k"), volume(true, workspace.ReasonVolumeReady)}, "VolumeKept recover_kept delete"},
		{workspace.ErrArchiveCorrupted, []func(*workspace.Workspace){home(workspace.HomeArchived, "k"), volume(true, workspace.ReasonVolumeReady)}, "VolumeKept recover_kept delete"},
		// The problem says where the lost data was.
		{workspace.ErrDataLost, []func(*workspace.Workspace){home(workspace.HomeLive, "k")}, "DataLost recover_volume recover-archive start-empty delete"},
		{workspace.ErrDataLost, []func(*workspace.Workspace){home(workspace.HomeLive, ""), unrecorded}, "DataLost recover_volume recover-archive start-empty delete"},
		{workspace.ErrDataLost, []func(*workspace.Workspace){home(workspace.HomeAbsent, "k")}, "ArchiveMissing recover_object recover-archive start-empty delete"},
		{workspace.ErrDataLost, []func(*workspace.Workspace){home(workspace.HomeFilling, "k"), unrecorded}, "ArchiveMissing recover_object recover-archive start-empty delete"},
	} {
		w := someWorkspace(workspace.PhaseError)
		w.ErrorReason = c.reason
		for _, change := range c.changes {
			change(&w)
		}
		v := viewOf(w, fromDetail, terms{grace: time.Hour, ttl: testTTL, now: testNow})
		got := v.Problem.Key
		for _, a := range v.Problem.Actions {
			got += " " + a.Key
		}
		if lost := strings.Contains(c.want, "start-empty"); got != c.want || v.Lost() != lost {
			t.Errorf("%s offers %q, lost %v; want %q", c.reason, got, v.Lost(), c.want)
		}
	}
}

// Where a workspace can be archived and restored, and by which button.
func TestArchiveActions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		phase   workspace.Phase
		op      workspace.Operation
		desired workspace.DesiredState
		next    workspace.DesiredState
		from    string
		want    string // primary | actions | menu | button of its own
	}{
		{workspace.PhaseRunning, workspace.OpNone, workspace.DesiredRunning, "", fromList, "open | stop | terminal restart keep-awake archive edit timeouts delete |"},
		{workspace.PhaseRunning, workspace.OpNone, workspace.DesiredRunning, "", fromDetail, "open | stop | terminal restart edit timeouts delete | archive"},
		{workspace.PhaseStandby, workspace.OpNone, workspace.DesiredStandby, "", fromList, "open | start | terminal archive edit timeouts delete |"},
		{workspace.PhaseStandby, workspace.OpNone, workspace.DesiredStandby, "", fromDetail, "open | start | terminal edit timeouts delete | archive"},
		{workspace.PhaseArchived, workspace.OpNone, workspace.DesiredArchived, "", fromList, "restore_open | restore | edit timeouts delete |"},
		{workspace.PhaseRunning, workspace.OpNone, workspace.DesiredArchived, "", fromList, "| start no_archive | force-stop edit timeouts delete |"},
		{workspace.PhaseRunning, workspace.OpStopping, workspace.DesiredArchived, "", fromList, "| start no_archive | force-stop edit timeouts delete |"},
		{workspace.PhaseStandby, workspace.OpNone, workspace.DesiredArchived, "", fromList, "| start no_archive | edit timeouts delete |"},
		{workspace.PhaseStandby, workspace.OpArchiving, workspace.DesiredArchived, "", fromList, "| start stop_archiving | edit timeouts delete |"},
		{workspace.PhaseStandby, workspace.OpArchiving, workspace.DesiredArchived, workspace.DesiredRunning, fromList, "| stay_archived stop_archiving | edit timeouts delete |"},
		{workspace.PhaseArchived, workspace.OpNone, workspace.DesiredRunning, "", fromList, "| stay_archived | edit timeouts delete |"},
		{workspace.PhaseArchived, workspace.OpRestoring, workspace.DesiredStandby, "", fromList, "| start cancel | edit timeouts delete |"},
		{workspace.PhaseArchived, workspace.OpRestoring, workspace.DesiredRunning, "", fromList, "| no_start cancel | edit timeouts delete |"},
	} {
		w := someWorkspace(c.phase)
		w.Operation, w.DesiredState, w.NextDesired = c.op, c.desired, c.next
		v := viewOf(w, c.from, terms{grace: time.Hour, ttl: testTTL, now: testNow})
		var got []string
		list := func(actions ...action) {
			for _, a := range actions {
				got = append(got, a.Key)
			}
		}
		if v.Primary != nil {
			list(*v.Primary)
		}
		got = append(got, "|")
		list(v.Actions...)
		got = append(got, "|")
		list(v.Menu...)
		got = append(got, "|")
		if v.ToArchive != nil {
			list(*v.ToArchive)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s/%s desired %s queued %q: %s, want %s", c.phase, c.op, c.desired, c.next, s, c.want)
		}
	}
	// A workspace that is being deleted can only finish.
	w := someWorkspace(workspace.PhaseStandby)
	w.Operation, w.DesiredState, w.Home.State = workspace.OpArchiving, workspace.DesiredArchived, workspace.HomeArchived
	if v := viewOf(w, fromList, terms{grace: time.Hour, ttl: testTTL, now: testNow}); len(v.Actions) != 1 || v.Actions[0].Key != "start" {
		t.Errorf("removing: %+v", v.Actions)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	sets := testPages
	show := func(lang string, op workspace.Operation, p *workspace.Progress) string {
		w := someWorkspace(workspace.PhaseStandby)
		w.Operation, w.Progress = op, p
		return strings.Join(strings.Fields(renderPart(t, sets[lang], "progress", viewOf(w, fromList, terms{grace: time.Hour, ttl: testTTL, now: testNow}))), " ")
	}
	full := &workspace.Progress{Step: "packing", Done: 412 << 20, Total: 1229 << 20, Entries: 12345, EntriesTotal: 98765, Rate: 48 << 20, SecondsLeft: 18}
	contains(t, "all is known", show("en", workspace.OpArchiving, full), "Packing the home folder", "412 MiB of 1.2 GiB", `max="100" value="33"`,
		`aria-label="Packing the home folder"`, `aria-valuetext="412 MiB of 1.2 GiB"`, "12,345 of 98,765 files", "48 MiB/s · about 20 s left")
	contains(t, "in Korean", show("ko", workspace.OpArchiving, full), "홈 폴더 압축 중", "1.2 GiB 중 412 MiB", "파일 98,765개 중 12,345개", "초당 48 MiB · 약 20초 남음")
	unknown := show("en", workspace.OpRestoring, &workspace.Progress{Step: "unpacking", Done: 5 << 20, Entries: 1})
	contains(t, "no total", unknown, "Unpacking the home folder", "5 MiB", "<progress aria-label=", "1 file<")
	lacks(t, "no total", unknown, "value=", "valuetext", "·", " of ")
	// The lines exist before the first report, so that the page does not move.
	for _, p := range []*workspace.Progress{nil, full, {Step: "removing"}} {
		if got := strings.Count(show("en", workspace.OpArchiving, p), `class="progress-text`); got != 2 {
			t.Errorf("%+v: %d lines", p, got)
		}
	}
	for _, step := range []string{"owning", "packing", "verifying", "checking", "unpacking", "removing", "waiting-bucket", "waiting-in-use", "waiting-backend"} {
		lacks(t, step, show("en", workspace.OpArchiving, &workspace.Progress{Step: step}), ">"+step+"<")
	}
	waits := &workspace.Progress{Step: "waiting-bucket"}
	contains(t, "the bucket has refused", show("en", workspace.OpArchiving, waits), "Waiting for the archive storage", "<progress aria-label=")
	contains(t, "in Korean", show("ko", workspace.OpRestoring, waits), "아카이브 저장소 응답 대기 중")
	inUse := &workspace.Progress{Step: "waiting-in-use", Detail: "nightly<backup"}
	for lang, text := range map[string]string{"en": "Used by container nightly&lt;backup", "ko": "사용 중인 컨테이너: nightly&lt;backup"} {
		for _, op := range []workspace.Operation{workspace.OpArchiving, workspace.OpProvisioning} {
			contains(t, "the home is in use", show(lang, op, inUse), text)
		}
	}
	contains(t, "no address", show("en", workspace.OpStarting, &workspace.Progress{Step: "waiting-backend", Detail: "no free network address"}),
		"Waiting to retry", "no free network address")
	// The number of files alone shows the progress too.
	contains(t, "files alone", show("en", workspace.OpRestoring, &workspace.Progress{Step: "unpacking", Entries: 1, EntriesTotal: 4}), `value="25"`)
	// A retry shows both the previous error and the progress.
	w := someWorkspace(workspace.PhaseStandby)
	w.Operation, w.Progress, w.ErrorReason, w.ErrorCount = workspace.OpArchiving, full, workspace.ErrActionFailed, 1
	contains(t, "again", renderPart(t, sets["en"], "card", map[string]any{"V": viewOf(w, fromList, terms{grace: time.Hour, ttl: testTTL, now: testNow}), "OOB": false}), "412 MiB", "problem-soft")
}

func TestNamesAreEscaped(t *testing.T) {
	t.Parallel()
	w := someWorkspace(workspace.PhaseError)
	w.Name = `<script>alert(1)</script>" onmouseover="x`
	w.Description, w.Memo, w.ErrorMessage, w.ImageRef = w.Name, `</textarea>`+w.Name, `</pre><b>`+w.Name, w.Name
	d := &Dashboard{Config: Config{Settings: service.Settings{DeleteGrace: time.Hour}, Now: func() time.Time { return testNow }}}
	for _, s := range testPages {
		v := viewOf(w, fromList, terms{grace: time.Hour, ttl: testTTL, now: testNow})
		dv := d.detailOf(w)
		f := &form{Name: "delete", W: &v, lang: s.lang, Value: map[string]string{}, Errors: map[string]string{}}
		edit := &form{Name: "edit", W: &v, lang: s.lang, Value: map[string]string{"name": w.Name, "description": w.Name, "memo": w.Memo}, Errors: map[string]string{}}
		html := renderPart(t, s, "card", map[string]any{"V": v, "OOB": false}) + renderPart(t, s, "panel", dv) +
			renderPart(t, s, "facts", dv) + renderPart(t, s, "memo", dv) + renderPart(t, s, "form", f) + renderPart(t, s, "form", edit) +
			renderPart(t, s, "toast", &toast{Text: s.lang.T("toast.delete", w.Name)}) + announcement(s.lang, v)
		for _, bad := range []string{"<script>", `" onmouseover="x`, "</textarea><", "</pre><b>"} {
			if strings.Contains(html, bad) {
				t.Errorf("%s: %q is in the page unescaped", s.lang.Code, bad)
			}
		}
		if !strings.Contains(html, "&lt;script&gt;") {
			t.Errorf("%s: the name is not in the page", s.lang.Code)
		}
	}
}

// In ERROR, no condition is shown as healthy or in progress.
func TestChecksInError(t *testing.T) {
	t.Parallel()
	w := someWorkspace(workspace.PhaseError)
	w.ErrorReason = workspace.ErrTimeout
	w.Conditions = workspace.Conditions{}.With(workspace.Healthy, true, workspace.ReasonHealthy, "", testNow).
		With(workspace.VolumeReady, false, workspace.ReasonFilling, "", testNow)
	for _, c := range []struct {
		condition workspace.ConditionType
		want      string
	}{{workspace.Healthy, "InError"}, {workspace.VolumeReady, "Incomplete"}} {
		if got := shown(w, c.condition); got.True() || got.Reason != c.want {
			t.Errorf("%s: %+v", c.condition, got)
		}
	}
	w.Phase, w.Operation = workspace.PhasePending, workspace.OpProvisioning
	if got := shown(w, workspace.VolumeReady); got.Reason != workspace.ReasonFilling {
		t.Errorf("while it is being prepared: %+v", got)
	}
}
