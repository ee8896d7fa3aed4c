package e2e

import (
	"fmt"
	"testing"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// In a terminal of the IDE and in any other, code opens a file in the IDE. Without an open IDE it
// says so. An IDE in a browser takes 15 s to open on a slow machine.
func TestCodeOpensFiles(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "code"})
	s.awaitPhase(id, "RUNNING")
	prepareIDE(t, id)
	in := workspaceShell{s, id}
	in.run(nil, `echo one > ~/one.txt; echo two > ~/project/two.txt
		code ~/one.txt 2> ~/said && exit 1; grep -q "^code: the IDE is not open" ~/said; code > /dev/null 2>&1; [ $? = 2 ]; code --version | grep -q ^4`)

	b := s.browser(t)
	b.login(s.URL, proc.AdminPassword)
	b.do("open it", navigate(s.URL+"/w/"+id+"/"))
	b.terminal()
	shows := func(name string) {
		t.Helper()
		b.do("see "+name, until(fmt.Sprintf(`[...document.querySelectorAll('.tab')].some(e => e.textContent.includes(%q))`, name)))
	}
	b.shell("code ~/one.txt; echo $((6 + 7))-opened", "13-opened")
	shows("one.txt")
	in.run(nil, "cd ~/project && code -g two.txt:1")
	shows("two.txt")
	s.remove(id)
}
