package workspace

import "testing"

// The scripts of Features are no more than an agent takes with all other steps.
func TestDevcontainerScripts(t *testing.T) {
	t.Parallel()
	d := &Devcontainer{Folder: ".", Scripts: make([]DevcontainerScript, maxDevcontainerScripts)}
	if err := d.Check(); err != nil {
		t.Error(err)
	}
	d.Scripts = append(d.Scripts, DevcontainerScript{})
	if err := d.Check(); CodeOf(err) != CodeInvalid {
		t.Errorf("%d scripts: %v", len(d.Scripts), err)
	}
}
