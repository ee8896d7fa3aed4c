package catalogue

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLanguagesHaveTheSameKeys(t *testing.T) {
	t.Parallel()
	for _, l := range Languages() {
		for _, k := range English.Keys() {
			if !l.Has(k) {
				t.Errorf("%s has no text for %q", l.Code, k)
			}
		}
		for _, k := range l.Keys() {
			if !English.Has(k) {
				t.Errorf("%s has a text for %q, which no other language has", l.Code, k)
			}
			if strings.TrimSpace(l.texts[k]) == "" {
				t.Errorf("%s: the text for %q is empty", l.Code, k)
			}
		}
	}
}

var verb = regexp.MustCompile(`%(\[(\d+)\])?[a-z]`)

// verbs lists a text's verbs in the order of their arguments.
func verbs(s string) []string {
	var out []string
	for _, m := range verb.FindAllStringSubmatch(s, -1) {
		v := m[0][len(m[0])-1:]
		if m[2] != "" {
			v = m[2] + v
		} else {
			v = string(rune('1'+len(out))) + v
		}
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

func TestTextsTakeTheSameArguments(t *testing.T) {
	t.Parallel()
	for k, text := range en {
		for _, l := range Languages() {
			if got, want := verbs(l.texts[k]), verbs(text); !slices.Equal(got, want) {
				t.Errorf("%s %q takes %v, English takes %v", l.Code, k, got, want)
			}
		}
	}
}

// Every condition of a server has a text, found by how the code makes conditions.
func TestConditionsHaveTexts(t *testing.T) {
	t.Parallel()
	condition := regexp.MustCompile(`(?:condition\(|\bName:\s+)"([a-z-]+)",\s+(?:Failing:\s+)?"`)
	found := map[string]bool{}
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range condition.FindAllStringSubmatch(string(source), -1) {
			if found[m[1]] = true; !English.Has("admin.condition." + m[1]) {
				t.Errorf("the condition %s of %s has no text", m[1], path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 32 {
		t.Errorf("only %d conditions found", len(found))
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ chosen, accept, want string }{
		{"", "", "en"},
		{"", "ko", "ko"},
		{"", "ko-KR,ko;q=0.9,en;q=0.5", "ko"},
		{"", "en-US,en;q=0.9,ko;q=0.8", "en"},
		{"", "de-DE,de;q=0.9", "en"},
		{"", "de,ko;q=0.4", "ko"},
		{"", ";;;=", "en"},
		{"", strings.Repeat("ko-", 5000), "en"},
		{"ko", "en", "ko"},
		{"xx", "ko", "ko"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept-Language", c.accept)
		if got := Match(c.chosen, r).Code; got != c.want {
			t.Errorf("chosen %q, Accept-Language %.40q: %s, want %s", c.chosen, c.accept, got, c.want)
		}
	}
}

func TestTimesAndSizes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Second: "just now", 59 * time.Second: "just now", 61 * time.Second: "1 min ago",
		3*time.Hour + time.Minute: "3 h ago", 25 * time.Hour: "1 day ago", 72 * time.Hour: "3 days ago",
	} {
		if got := English.Ago(now.Add(-d), now); got != want {
			t.Errorf("%s ago is %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Hour: "less than a minute", 118 * time.Minute: "1 h 58 min", 5 * time.Minute: "5 min", 24 * time.Hour: "1 day", 60 * time.Hour: "3 days", 90*24*time.Hour - time.Second: "90 days",
	} {
		if got := English.In(now.Add(d), now); got != want {
			t.Errorf("in %s is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int]string{
		0: "5 s", 1: "5 s", 6: "10 s", 55: "55 s", 56: "1 min", 60: "1 min", 61: "2 min", 59 * 60: "59 min",
		59*60 + 1: "1 h 0 min", 3600: "1 h 0 min", 3601: "1 h 5 min", 7 * 3600: "7 h 0 min",
	} {
		if got := English.Left(n); got != want {
			t.Errorf("%d s left are %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 12345: "12,345", 1234567: "1,234,567", -1234: "-1,234", -123: "-123"} {
		if got := English.Count(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1500: "1.5 KiB", 640 << 20: "640 MiB", 5 << 29: "2.5 GiB"} {
		if got := English.Bytes(n); got != want {
			t.Errorf("%d bytes is %q, want %q", n, got, want)
		}
	}
}

// A text that is missing is its key on the page, and an error in tests of the pages.
func TestMissingTextIsReported(t *testing.T) {
	t.Parallel()
	var got []string
	report := func(language, key string) { got = append(got, language+" "+key) }
	english, korean := English.Reporting(report), Korean.Reporting(report)
	if s := korean.T("no.such.text"); s != "no.such.text" {
		t.Errorf("the text is %q", s)
	}
	english.N("no.such.count", 1)
	english.T("brand")
	if want := []string{"ko no.such.text", "en no.such.count.one"}; !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
}

// The Korean texts have one word for one thing.
func TestKoreanHasOneWordEach(t *testing.T) {
	t.Parallel()
	for word, instead := range map[string]string{
		"고아": "소유 워크스페이스가 없는", "유휴": "사용하지 않을 때", "자동 중지 설정": "자동 중지·보관",
		"편집": "수정", "최근 활동": "마지막 활동", "상세 정보": "세부 정보", "만든 시각": "생성 시각",
		"공유 종료": "공유 중지", "공유 끝": "공유 중지", "공유를 끝": "공유를 중지",
		"알림이 갑니다": "알림을 보냅니다", "아카이브로 계속": "아카이브에서 복구", "소유자 %[1]s 사용자": "소유자(%[1]s)",
	} {
		for k, text := range ko {
			if strings.Contains(strings.ReplaceAll(text, "편집기", ""), word) {
				t.Errorf("%s has %s in place of %s: %s", k, word, instead, text)
			}
		}
	}
	for k, text := range ko {
		if restarts := strings.Contains(k, "restart"); restarts && strings.Contains(text, "다시 시작할") || restarts && strings.HasPrefix(text, "다시 시작") {
			t.Errorf("%s: a restart is 재시작: %s", k, text)
		}
	}
}

// Of a message users get the sentences that are in the catalogue.
func TestSentences(t *testing.T) {
	t.Parallel()
	const message = "image a: The registry r.example.com has no such image. dial tcp: no; The home volume v1 is missing. (exit 1)"
	for l, want := range map[*Language]string{
		English: "The registry r.example.com has no such image. The home volume v1 is missing.",
		Korean:  Korean.System("The registry r.example.com has no such image.") + " " + Korean.System("The home volume v1 is missing."),
	} {
		if got := l.Sentences(message); got != want {
			t.Errorf("%s: %q, want %q", l.Code, got, want)
		}
	}
	if got := English.Sentences("driver failed since 3 of 4"); got != "" {
		t.Errorf("a message of Docker has the sentences %q", got)
	}
}

// The errors that requests about backups are answered with, as in docs/api.md, have texts.
func TestErrorsOfBackupsHaveTexts(t *testing.T) {
	t.Parallel()
	for _, code := range []string{
		"invalid_request", "forbidden", "not_found", "archive_not_found", "name_taken", "operation_in_progress", "recovery_required", "not_running", "workspace_limit_exceeded",
		"quota_exceeded", "not_supported", "image_not_allowed", "too_large", "unavailable", "too_many_streams", "no_agent", "workspace_stopped", "file_exists", "disk_full", "internal",
	} {
		for _, l := range Languages() {
			if !l.Has("err." + code) {
				t.Errorf("%s has no text for %s", l.Code, code)
			}
		}
	}
}
