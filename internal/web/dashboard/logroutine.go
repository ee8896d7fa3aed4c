package dashboard

import (
	"regexp"
	"strings"
)

// routine are the beginnings of lines that code-server and VS Code's server print whenever they
// start and whenever a browser connects. A line that is unusual is not routine.
var (
	routine = regexp.MustCompile(`^(` +
		`\[\d{4}-\d\d-\d\dT[\d:.]+Z\] (info|debug|trace) ` + // code-server
		`|\[\d\d:\d\d:\d\d\] (\[[\w.:]+\]\[[0-9a-f]+\]\[\w+Connection\] |\[AgentHost\w*\] |Extension host agent |(Started|Completed) initializing |(New|Last) EH |$)` + // VS Code's server
		`|\[reconnection-grace-time\] ` +
		`|File not found: /opt/codehub-ide/` + // parts that only Microsoft's builds have
		`)`)
	unusual = regexp.MustCompile(`(?i)error|fail|warn|exception|cannot|unable|denied|refused|unhandled|crash|kill|out of memory|exited with code: [^0]`)
)

// withoutRoutine returns the log without the IDE's routine lines and the empty ones after them,
// and how many routine lines it had.
func withoutRoutine(log string) (text string, hidden int) {
	var b strings.Builder
	after := false // the line before was hidden
	for line := range strings.Lines(log) {
		end := strings.TrimRight(line, "\n")
		switch {
		case routine.MatchString(end) && !unusual.MatchString(end):
			hidden++
			after = true
		case after && strings.TrimSpace(end) == "":
		default:
			after = false
			b.WriteString(line)
		}
	}
	return b.String(), hidden
}
