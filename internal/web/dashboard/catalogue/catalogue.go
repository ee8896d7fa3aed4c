// Package catalogue has all texts of codehub's pages, one file per language with the same keys.
package catalogue

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/language"

	"codehub/internal/base/setting"
)

// Language is the texts of one language.
type Language struct {
	Code  string // BCP 47, for the lang attribute: "en", "ko"
	Name  string // in the language itself
	texts map[string]string
	// plural reports whether n takes the ".other" form.
	plural  func(n int) bool
	missing func(language, key string) // optional; see Reporting
}

var (
	// English is the default language.
	English = &Language{Code: "en", Name: "English", texts: en, plural: func(n int) bool { return n != 1 }}
	Korean  = &Language{Code: "ko", Name: "한국어", texts: ko, plural: func(int) bool { return true }}
)

// Languages lists the languages, the default one first.
func Languages() []*Language { return []*Language{English, Korean} }

var matcher = language.NewMatcher([]language.Tag{language.English, language.Korean})

// ByCode returns the language with this code.
func ByCode(code string) (*Language, bool) {
	for _, l := range Languages() {
		if l.Code == code {
			return l, true
		}
	}
	return nil, false
}

// Match returns the language for a request: the chosen code if codehub has it, else the best
// match for Accept-Language.
func Match(chosen string, r *http.Request) *Language {
	if l, ok := ByCode(chosen); ok {
		return l
	}
	// An unreadable header counts as none. The server bounds its length, and the parser the
	// number of tags.
	tags, _, err := language.ParseAcceptLanguage(r.Header.Get("Accept-Language"))
	if err != nil {
		return English
	}
	_, i, _ := matcher.Match(tags...)
	return Languages()[i]
}

// Has reports whether the language has a text for key.
func (l *Language) Has(key string) bool {
	_, ok := l.texts[key]
	return ok
}

// Keys lists the keys of the language's texts, in no order.
func (l *Language) Keys() []string {
	out := make([]string, 0, len(l.texts))
	for k := range l.texts {
		out = append(out, k)
	}
	return out
}

// Reporting returns the same language, which calls missing for each text that it lacks.
func (l *Language) Reporting(missing func(language, key string)) *Language {
	other := *l
	other.missing = missing
	return &other
}

// On returns the same language with texts about another runtime than Docker, by its name.
func (l *Language) On(name string) *Language {
	other := *l
	other.texts = make(map[string]string, len(l.texts))
	for k, text := range l.texts {
		other.texts[k] = strings.ReplaceAll(text, "Docker", name)
	}
	return &other
}

// T returns the text for key, formatted with args as by fmt. A missing text is replaced by
// its key.
func (l *Language) T(key string, args ...any) string {
	s, ok := l.texts[key]
	if !ok {
		if l.missing != nil {
			l.missing(l.Code, key)
		}
		return key
	}
	if len(args) == 0 {
		return s
	}
	return fmt.Sprintf(s, args...)
}

// Known returns the text for prefix + key, or key if the language has none, such as the name of a
// condition that a newer server reports.
func (l *Language) Known(prefix, key string) string {
	if s, ok := l.texts[prefix+key]; ok {
		return s
	}
	return key
}

// N returns the text for a count: key + ".one" or key + ".other", formatted
// with n and then args.
func (l *Language) N(key string, n int, args ...any) string {
	if l.plural(n) {
		key += ".other"
	} else {
		key += ".one"
	}
	return l.T(key, append([]any{n}, args...)...)
}

// Ago formats the time since t: "just now", "5 min ago", "3 h ago", "2 days ago".
func (l *Language) Ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return l.T("time.now")
	case d < time.Hour:
		return l.T("time.minutes_ago", int(d/time.Minute))
	case d < 24*time.Hour:
		return l.T("time.hours_ago", int(d/time.Hour))
	}
	return l.N("time.days_ago", int(d/(24*time.Hour)))
}

// For formats a duration since then: "for 5 min", "for 1 h 58 min".
func (l *Language) For(since, now time.Time) string {
	d := now.Sub(since)
	switch {
	case d < time.Minute:
		return l.T("time.for_moment")
	case d < time.Hour:
		return l.T("time.for_minutes", int(d/time.Minute))
	case d < 24*time.Hour:
		return l.T("time.for_hours", int(d/time.Hour), int(d%time.Hour/time.Minute))
	}
	return l.N("time.for_days", int(d/(24*time.Hour)))
}

// In formats the time until t: "less than a minute", "5 min", "1 h 58 min", "2 days".
func (l *Language) In(t, now time.Time) string {
	d := t.Sub(now)
	switch {
	case d < time.Minute:
		return l.T("time.in_moment")
	case d < time.Hour:
		return l.T("time.in_minutes", int(d/time.Minute))
	case d < 24*time.Hour:
		return l.T("time.in_hours", int(d/time.Hour), int(d%time.Hour/time.Minute))
	}
	return l.N("time.in_days", int((d+12*time.Hour)/(24*time.Hour)))
}

// Left formats an estimate of the remaining time, without false precision: "40 s", "3 min", "1
// h 5 min".
func (l *Language) Left(seconds int) string {
	switch {
	case seconds <= 55:
		return l.T("time.in_seconds", max(5, (seconds+4)/5*5))
	case seconds <= 59*60:
		return l.T("time.in_minutes", (seconds+59)/60)
	}
	minutes := (seconds + 5*60 - 1) / (5 * 60) * 5
	return l.T("time.in_hours", minutes/60, minutes%60)
}

// Lasting formats a duration in the largest units that are exact enough: "10 min", "1 h 30
// min", "3 h", "1 day".
func (l *Language) Lasting(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d < time.Minute:
		return l.T("time.in_seconds", int(d/time.Second))
	case d < time.Hour:
		return l.T("time.in_minutes", int(d/time.Minute))
	case d < day || d < 2*day && d%day >= time.Hour:
		if minutes := int(d % time.Hour / time.Minute); minutes > 0 {
			return l.T("time.in_hours", int(d/time.Hour), minutes)
		}
		return l.T("time.hours", int(d/time.Hour))
	}
	return l.N("time.in_days", int((d+day/2)/day))
}

// Took formats how long something took, to the second for the first hour: "1 min 20 s".
func (l *Language) Took(d time.Duration) string {
	if d = d.Round(time.Second); d >= time.Minute && d < time.Hour {
		return l.T("time.in_minutes_seconds", int(d/time.Minute), int(d%time.Minute/time.Second))
	}
	return l.Lasting(d)
}

// Count formats a number with thousands separators: "12,345".
func (l *Language) Count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Bytes formats a size: "640 MiB".
func (l *Language) Bytes(n int64) string { return setting.FormatBytes(n) }
