package maintenance

import (
	"os"
	"strings"
	"testing"
)

// The page names the phrase that confirms the removal of homes, for scripts.
func TestPhraseIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"`" + removeHomes + "`", "echo '" + removeHomes + "' | codehub uninstall --yes --homes"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("install.md does not have %s", want)
		}
	}
}
