package dashboard

import (
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// life returns the text of a card about idle timeouts.
func life(t *testing.T, lang string, w workspace.Workspace, ttl workspace.TTL) string {
	t.Helper()
	v := viewOf(w, fromList, terms{grace: time.Hour, ttl: ttl, now: testNow})
	s := renderPart(t, testPages[lang], "life", v)
	s = strings.NewReplacer("</span>", " |").Replace(s)
	return strings.Join(strings.Fields(tags.ReplaceAllString(s, " ")), " ")
}

func TestLifetimes(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) *time.Time { at := testNow.Add(-d); return &at }
	ahead := func(d time.Duration) *time.Time { return ago(-d) }
	seconds := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		phase  workspace.Phase
		change func(*workspace.Workspace)
		ttl    workspace.TTL
		en, ko string
	}{
		"used": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.LastAccessAt, w.LastAccess = ago(3*time.Minute), "typing" }, testTTL,
			"Last activity 3 min ago : typing | stops automatically in 7 min |", "마지막 활동: 3분 전 (입력) | 자동 중지까지 7분 |"},
		"never used": {workspace.PhaseRunning, func(w *workspace.Workspace) {}, testTTL,
			"No activity yet | stops automatically in 5 min |", "활동 없음 | 자동 중지까지 5분 |"},
		"unrecorded time does not count": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.Unwatched = time.Hour }, testTTL,
			"No activity yet | stops automatically in 1 h 5 min |", "활동 없음 | 자동 중지까지 1시간 5분 |"},
		"a custom idle timeout": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.StandbyTTL = seconds(3 * 3600) }, testTTL,
			"No activity yet | stops automatically in 2 h 55 min |", "활동 없음 | 자동 중지까지 2시간 55분 |"},
		"never": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.StandbyTTL = seconds(0) }, testTTL,
			"No activity yet | never stops automatically |", "활동 없음 | 자동으로 중지되지 않음 |"},
		"never by default": {workspace.PhaseRunning, func(w *workspace.Workspace) {}, workspace.TTL{},
			"No activity yet | never stops automatically |", "활동 없음 | 자동으로 중지되지 않음 |"},
		"overdue": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.PhaseChangedAt = *ago(time.Hour) }, testTTL,
			"No activity yet | stops automatically in less than a minute |", "활동 없음 | 자동 중지까지 1분 미만 |"},
		"kept awake": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.KeepAwakeTil = ahead(2 * time.Hour) }, testTTL,
			"No activity yet | kept awake for another 2 h 0 min |", "활동 없음 | 실행 유지 시간: 2시간 0분 |"},
		"was kept awake": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.KeepAwakeTil = ago(time.Hour) }, testTTL,
			"No activity yet | stops automatically in 5 min |", "활동 없음 | 자동 중지까지 5분 |"},
		"being stopped on request": {workspace.PhaseRunning, func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStandby }, testTTL, "", ""},
		"being stopped, idle": {workspace.PhaseRunning, func(w *workspace.Workspace) {
			w.DesiredState, w.DesiredCause, w.Operation = workspace.DesiredStandby, workspace.CauseIdle, workspace.OpStopping
		}, testTTL, "Stopping because of inactivity |", "사용하지 않아 중지하는 중 |"},
		"stopped on request": {workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason = lifecycle.StopRequested }, testTTL,
			"Stopped on request | will be archived in 25 min |", "요청에 따라 중지됨 | 자동 보관까지 25분 |"},
		"stopped by force": {workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason, w.ArchiveTTL = lifecycle.StopForced, seconds(0) }, testTTL,
			"Force-stopped | never archived automatically |", "강제로 중지됨 | 자동으로 보관되지 않음 |"},
		"exited": {workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason = lifecycle.StopExited }, testTTL,
			"Stopped because its container exited | will be archived in 25 min |", "컨테이너가 종료되어 중지됨 | 자동 보관까지 25분 |"},
		"idle": {workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason, w.LastAccessAt = lifecycle.StopIdle, ago(18*time.Minute) }, testTTL,
			"Stopped after 13 min of inactivity | will be archived in 25 min |", "13분 동안 사용하지 않아 중지됨 | 자동 보관까지 25분 |"},
		"idle, and never used": {workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason = lifecycle.StopIdle }, testTTL,
			"Stopped because of inactivity | will be archived in 25 min |", "사용하지 않아 중지됨 | 자동 보관까지 25분 |"},
		"being archived, unused": {workspace.PhaseStandby, func(w *workspace.Workspace) {
			w.DesiredState, w.DesiredCause, w.Operation = workspace.DesiredArchived, workspace.CauseUnused, workspace.OpArchiving
		}, testTTL, "Archiving because of inactivity |", "사용하지 않아 보관하는 중 |"},
		"archived, unused": {workspace.PhaseArchived, func(w *workspace.Workspace) { w.DesiredCause = workspace.CauseUnused }, testTTL,
			"Archived because of inactivity |", "사용하지 않아 보관됨 |"},
		"archived on request": {workspace.PhaseArchived, func(w *workspace.Workspace) {}, testTTL, "", ""},
		"deleted":             {workspace.PhaseDeleting, func(w *workspace.Workspace) { w.DesiredCause = workspace.CauseUnused }, testTTL, "", ""},
	} {
		w := someWorkspace(c.phase)
		c.change(&w)
		if got := life(t, "en", w, c.ttl); got != c.en {
			t.Errorf("%s: %q, want %q", name, got, c.en)
		}
		if got := life(t, "ko", w, c.ttl); got != c.ko {
			t.Errorf("%s: %q, want %q", name, got, c.ko)
		}
	}
}

func TestWarnBefore(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]time.Duration{
		30 * time.Second: time.Minute, 3 * time.Minute: time.Minute, 10 * time.Minute: 2 * time.Minute,
		25 * time.Minute: 5 * time.Minute, 3 * time.Hour: 5 * time.Minute,
	} {
		if got := warnBefore(ttl); got != want {
			t.Errorf("%s: %s, want %s", ttl, got, want)
		}
	}
}

// A warning is due at a fixed time, which the page's stream waits for.
func TestNoticesAreTimely(t *testing.T) {
	t.Parallel()
	w := someWorkspace(workspace.PhaseRunning) // for 5 min, so it stops in 5, and the warning comes 2 min before
	soon := testNow.Add(3 * time.Minute)
	for at, want := range map[time.Time]bool{testNow: false, soon.Add(-time.Nanosecond): false, soon: true, soon.Add(time.Hour): true} {
		n := notices{Now: at}
		n.add([]workspace.Workspace{w}, testTTL)
		due := soon
		if want {
			due = at.Add(endingRefresh) // activity may still prevent the stop
		}
		if got := len(n.Endings) == 1; got != want || !n.due.Equal(due) {
			t.Errorf("at %s: %+v", at, n)
		}
	}
	for name, change := range map[string]func(*workspace.Workspace){
		"stopped":    func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStandby },
		"kept awake": func(w *workspace.Workspace) { at := testNow.Add(2 * time.Hour); w.KeepAwakeTil = &at },
		"busy":       func(w *workspace.Workspace) { w.Operation = workspace.OpStopping },
		"never":      func(w *workspace.Workspace) { never := 0; w.StandbyTTL = &never },
		"at rest": func(w *workspace.Workspace) {
			w.Phase, w.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
		},
		"kept running": func(w *workspace.Workspace) { at := soon; w.LastAccessAt = &at },
	} {
		other := w
		change(&other)
		n := notices{Now: soon}
		n.add([]workspace.Workspace{other}, testTTL)
		if len(n.Endings) > 0 {
			t.Errorf("%s: %+v", name, n.Endings)
		}
	}
}
