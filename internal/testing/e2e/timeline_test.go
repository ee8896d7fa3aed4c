package e2e

import (
	"fmt"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"

	"github.com/chromedp/chromedp"
)

// The Timeline of a file in the IDE shows its versions in the backups, and compares one with the file. Of
// another file than text it says so. It takes longer than 20 s, for the IDE in Chromium.
func TestTimelineHasBackups(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := startQuick(t, append(folderBucket(t).settings, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s")...)
	b := s.browser(t) // may wait
	id := s.create(api.CreateWorkspace{Name: "alpha"})
	s.awaitPhase(id, "RUNNING")
	prepareIDE(t, id)
	const file = "project/notes.txt"
	s.run(id, `echo the first text >`+file+`; printf 'a\0b' >project/data.bin`)
	s.backUp(id, "first state")
	s.run(id, `echo unrelated >project/other; echo x >>project/data.bin`)
	s.backUp(id, "unrelated change")
	s.run(id, `echo the second text >`+file)
	s.backUp(id, "second state")
	s.run(id, `echo the present text >`+file)
	versions, err := s.api.FileVersions(t.Context(), id, file)
	if err != nil || len(versions) != 2 || versions[0].Note != "second state" || versions[1].Change != api.FileAdded {
		t.Fatalf("%+v, %v", versions, err)
	}

	b.login(s.URL, proc.AdminPassword)
	b.do("open the IDE", navigate(s.URL+"/w/"+id+"/"))
	b.workbench()
	open := func(name string) {
		t.Helper()
		b.do("open "+name, chromedp.Click(fmt.Sprintf(`.explorer-folders-view .monaco-list-row[aria-label*=%q]`, name)), until(fmt.Sprintf(`document.title.startsWith(%q)`, name+" – ")))
	}
	const rows = `[...document.querySelectorAll('.timeline-tree-view .monaco-list-row')]`
	shows := func(want ...string) {
		t.Helper()
		b.do("see "+strings.Join(want, ", "), until(fmt.Sprintf(`%s.map(e => e.querySelector('.label-name')?.innerText).join() === %q`, rows, strings.Join(want, ","))))
	}
	compare := func(name, label, text string) {
		t.Helper()
		b.do("compare with "+label, until(fmt.Sprintf(`%s.find(e => e.innerText.includes(%q)).click() === undefined`, rows, label)),
			until(fmt.Sprintf(`document.title.startsWith(%q)`, name+" ("+label+") ↔ "+name)),
			until(fmt.Sprintf(`document.querySelector('.diff-editor .editor.original .view-lines')?.innerText.replaceAll('\u00a0', ' ').includes(%q)`, text)))
	}
	open("notes.txt")
	b.command("Focus on Timeline View")
	shows("second state", "first state")
	b.screenshot("timeline")
	compare("notes.txt", "first state", "the first text")
	b.do("see the file next to it", until(`document.querySelector('.diff-editor .editor.modified .view-lines')?.innerText.replaceAll('\u00a0', ' ').includes('the present text')`))
	b.screenshot("compared")
	open("data.bin")
	shows("unrelated change", "first state")
	compare("data.bin", "first state", "This is not a text file.")
	s.remove(id)
}
