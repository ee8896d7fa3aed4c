package catalogue

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// systemPrefix begins the keys of texts that the server writes in English, such as conditions,
// and that pages translate.
const systemPrefix = "system."

// systemFragments are texts that are too common to be recognized alone. Each is translated only
// in a message that also has one of its companions.
var systemFragments = map[string][]string{
	"system.aside_since":    {"system.aside_partial", "system.aside_kept"},
	"system.aside_size":     {"system.aside_partial", "system.aside_kept"},
	"system.images_allowed": {"system.image_not_allowed"},
	"system.hold_at":        {"system.hold_workspaces", "system.hold_archives"},

	"system.reached_workspace": {"system.isolation_reached"},
	"system.reached_api":       {"system.isolation_reached"},
	"system.reached_node":      {"system.isolation_reached"},
	"system.reached_metadata":  {"system.isolation_reached"},
}

// System translates the sentences of the server's message that are in the catalogue. The rest,
// such as an error of Docker, stays as it is.
func (l *Language) System(message string) string {
	if l.Code == English.Code {
		return message
	}
	matched := map[string]bool{}
	for _, r := range systemRules() {
		companions := systemFragments[r.key]
		if companions != nil && !slices.ContainsFunc(companions, func(k string) bool { return matched[k] }) {
			continue
		}
		if !r.pattern.MatchString(message) {
			continue
		}
		matched[r.key] = true
		args := verbInText.ReplaceAllStringFunc(strings.ReplaceAll(l.texts[r.key], "$", "$$"), func(v string) string {
			if n := verbInText.FindStringSubmatch(v)[1]; n != "" {
				return "${" + n + "}"
			}
			return "${next}"
		})
		for n := 1; strings.Contains(args, "${next}"); n++ {
			args = strings.Replace(args, "${next}", "${"+string(rune('0'+n))+"}", 1)
		}
		message = r.pattern.ReplaceAllString(message, args)
	}
	return message
}

// Sentences returns the sentences of the server's message that are in the catalogue, in their order
// and the language, without the rest.
func (l *Language) Sentences(message string) string {
	rest, at := message, map[int]string{}
	for _, r := range systemRules() {
		if systemFragments[r.key] != nil {
			continue
		}
		for _, found := range r.pattern.FindAllStringIndex(rest, -1) {
			at[found[0]] = l.System(message[found[0]:found[1]])
			rest = rest[:found[0]] + strings.Repeat("\x00", found[1]-found[0]) + rest[found[1]:]
		}
	}
	out := make([]string, 0, len(at))
	for _, i := range slices.Sorted(maps.Keys(at)) {
		out = append(out, at[i])
	}
	return strings.Join(out, " ")
}

var verbInText = regexp.MustCompile(`%(?:\[(\d)\])?[sd]`)

type systemRule struct {
	key     string
	pattern *regexp.Regexp
}

// systemRules has the longest texts first, since a shorter one may be part of them. Fragments
// come after their companions. They are made at the first use, since the agent of workspaces
// needs none.
var systemRules = sync.OnceValue(func() []systemRule {
	var out []systemRule
	keys := slices.SortedFunc(maps.Keys(en), func(a, b string) int {
		if fragment := systemFragments[a] != nil; fragment != (systemFragments[b] != nil) {
			if fragment {
				return 1
			}
			return -1
		}
		if d := len(en[b]) - len(en[a]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, k := range keys {
		if strings.HasPrefix(k, systemPrefix) {
			pattern := regexp.QuoteMeta(en[k])
			pattern = strings.ReplaceAll(pattern, "%s", `([^\s;,]+(?: [0-9:]+ UTC| UTC)?)`)
			pattern = strings.ReplaceAll(pattern, "%d", `(\d+)`)
			out = append(out, systemRule{k, regexp.MustCompile(pattern)})
		}
	}
	return out
})
