package dashboard

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"codehub/internal/control/homebackup"
	marks "codehub/internal/control/mark"
	"codehub/internal/control/reconcile"
	"codehub/internal/runtime"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Every error code has a text in each language, so a page never shows the API's message.
func TestErrorCodesHaveTexts(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../workspace/errors.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`\bCode\s+= "([a-z_]+)"`).FindAllStringSubmatch(string(b), -1)
	if len(codes) < 20 {
		t.Fatalf("found only %d codes", len(codes))
	}
	for _, m := range codes {
		for _, l := range catalogue.Languages() {
			if !l.Has("err." + m[1]) {
				t.Errorf("%s has no text err.%s", l.Code, m[1])
			}
		}
	}
}

// Every reason of a condition and of an error has a text in each language.
func TestReasonsHaveTexts(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../workspace/condition.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`\bReason\w+\s+= "(\w+)"`).FindAllStringSubmatch(string(b), -1)
	if len(reasons) < 10 {
		t.Fatalf("found only %d reasons", len(reasons))
	}
	for _, l := range catalogue.Languages() {
		for _, m := range reasons {
			if !l.Has("reason." + m[1]) {
				t.Errorf("%s has no text reason.%s", l.Code, m[1])
			}
		}
		for _, r := range workspace.ErrorReasons() {
			if !l.Has("problem."+string(r)+".title") || !l.Has("problem."+string(r)+".body") {
				t.Errorf("%s has no texts problem.%s", l.Code, r)
			}
		}
	}
}

// Korean pages translate every sentence that the server writes into conditions, errors, orphans
// and holds.
func TestSystemMessagesAreTranslated(t *testing.T) {
	t.Parallel()
	messages := slices.Concat(lifecycle.Messages(), reconcile.Messages(), homebackup.Messages(), marks.Reasons())
	if len(messages) < 20 {
		t.Fatalf("found only %d messages", len(messages))
	}
	for _, k := range catalogue.English.Keys() {
		if strings.HasPrefix(k, "system.") && !slices.Contains(messages, catalogue.English.T(k)) {
			t.Errorf("the server never writes %s: %q", k, catalogue.English.T(k))
		}
	}
	reached := [2]string{runtime.MsgReached + " ", " (10.0.0.1:80)"}
	aside, hold := [2]string{"docker, ", "; kept until an administrator removes it"}, [2]string{"another database managed these workspaces last", ""}
	// Parts of a message, with the text that surrounds them.
	within := map[string][2]string{"since %s": aside, "%d bytes in %d files and folders": aside, ", at %s": hold,
		runtime.ReachedWorkspace: reached, runtime.ReachedAPI: reached, runtime.ReachedNode: reached, runtime.ReachedMetadata: reached,
		"Allowed images:": {"The image x-1 is not allowed on this server. ", ""}}
	for _, m := range messages {
		around := within[m]
		m = strings.NewReplacer("%s", "x-1", "%d", "7").Replace(m)
		got := catalogue.Korean.System(around[0] + m + around[1])
		got = strings.TrimPrefix(got, catalogue.Korean.System(around[0]))
		got = strings.TrimSuffix(got, catalogue.Korean.System(around[1]))
		if !strings.ContainsFunc(got, func(r rune) bool { return unicode.Is(unicode.Hangul, r) }) {
			t.Errorf("%q becomes %q", m, got)
		}
		for _, word := range []string{" is ", " was ", " the ", "The "} {
			if strings.Contains(got, word) {
				t.Errorf("%q becomes %q, which has English in it", m, got)
			}
		}
		if strings.Contains(m, "x-1") && !strings.Contains(got, "x-1") {
			t.Errorf("%q becomes %q, without the name", m, got)
		}
		if catalogue.English.System(m) != m {
			t.Errorf("English changes %q", m)
		}
	}
	for in, want := range map[string]string{
		"The archive k/1.tar is missing. The home volume ws-1-home still exists and is complete. Recover the workspace to use it.": "아카이브 k/1.tar: 아카이브가 없습니다. 홈 볼륨 ws-1-home: 볼륨이 온전히 남아 있습니다. 다시 시도하면 이 볼륨을 사용합니다.",
		"another database managed these workspaces last, at 2026-11-22 10:00:00 UTC":                                               "다른 데이터베이스가 이 워크스페이스를 마지막으로 관리했습니다. 시각: 2026-11-22 10:00:00 UTC",
		"docker, since 2026-11-22T10:00:00Z, 12 bytes in 3 files and folders; kept until an administrator removes it":              "docker, 시작 2026-11-22T10:00:00Z, 파일과 폴더 3개, 12바이트; 관리자가 제거할 때까지 유지",
		"STARTING did not finish in time. driver failed":                                                                           "제한 시간 안에 끝나지 않은 작업: STARTING. driver failed",
		"driver failed $1 %s": "driver failed $1 %s",
		// An error from outside is not translated, also next to a translated sentence.
		"mount failed, at /var/lib/x, since yesterday: 12 bytes in 3 files and folders": "mount failed, at /var/lib/x, since yesterday: 12 bytes in 3 files and folders",
		"STARTING did not finish in time. mount failed, at /var/lib/x":                  "제한 시간 안에 끝나지 않은 작업: STARTING. mount failed, at /var/lib/x",
	} {
		if got := catalogue.Korean.System(in); got != want {
			t.Errorf("%q becomes\n%q, want\n%q", in, got, want)
		}
	}
}
