package workspace_test

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/workspace"
)

func TestLevels(t *testing.T) {
	t.Parallel()
	for phase, want := range map[workspace.Phase]int{
		workspace.PhaseRunning: 20, workspace.PhaseStandby: 10, workspace.PhaseArchived: 5, workspace.PhasePending: 0,
		workspace.PhaseError: -1, workspace.PhaseDeleting: -1, workspace.PhaseDeleted: -1, "": -1,
	} {
		if got := phase.Level(); got != want {
			t.Errorf("%s: %d, want %d", phase, got, want)
		}
	}
}

func TestParseDesiredState(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"RUNNING": true, "STANDBY": true, "ARCHIVED": true,
		"DELETED": false, "PENDING": false, "running": false, "": false, "RUNNING ": false,
	} {
		d, ok := workspace.ParseDesiredState(s)
		if ok != want || ok && string(d) != s || !ok && d != "" {
			t.Errorf("%q: %q %v", s, d, ok)
		}
	}
}

// Every word is listed, and listed once.
func TestWordsAreListedOnce(t *testing.T) {
	t.Parallel()
	check := func(name string, words []string, n int) {
		t.Helper()
		slices.Sort(words)
		if len(words) != n || len(slices.Compact(words)) != n {
			t.Errorf("%s: %v", name, words)
		}
	}
	check("phases", spelled(workspace.Phases()), 7)
	check("operations", spelled(workspace.Operations()), 8)
	check("homes", spelled(workspace.HomeStates()), 6)
	check("error reasons", spelled(workspace.ErrorReasons()), 10)
	if workspace.Operations()[0] != workspace.OpNone {
		t.Error("NONE is not the first of the operations")
	}
}

func spelled[S ~string](list []S) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

// Reasons that are final at once, or after retries.
func TestFinalReasons(t *testing.T) {
	t.Parallel()
	passing := []workspace.ErrorReason{"", workspace.ErrActionFailed, workspace.ErrUnrestorable}
	for _, r := range append(workspace.ErrorReasons(), "") {
		if got, want := r.Final(), !slices.Contains(passing, r); got != want {
			t.Errorf("%q: %v", r, got)
		}
	}
}

func TestOwns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		caller workspace.Caller
		owner  string
		want   bool
	}{
		{"the owner", workspace.Caller{UserID: "u1"}, "u1", true},
		{"somebody else", workspace.Caller{UserID: "u2"}, "u1", false},
		{"an admin is somebody else", workspace.Caller{UserID: "u2", Admin: true}, "u1", false},
		{"codehub itself", workspace.System, "u1", true},
		{"one who calls himself system", workspace.Caller{UserID: "system"}, "u1", false},
		{"a system with a session", workspace.Caller{UserID: "system", Username: "system", Session: "s"}, "u1", false},
		{"nobody", workspace.Caller{}, "u1", false},
		{"nobody of nobody's", workspace.Caller{}, "", false},
	} {
		if got := c.caller.Owns(c.owner); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestCodeOf(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection reset")
	err := workspace.Errorf(workspace.CodeGone, "%s is gone", "it")
	err.Err = cause
	wrapped := fmt.Errorf("undelete: %w", err)
	if workspace.CodeOf(wrapped) != workspace.CodeGone || !errors.Is(wrapped, cause) {
		t.Errorf("%v: code %q", wrapped, workspace.CodeOf(wrapped))
	}
	if got := err.Error(); got != "gone: it is gone: connection reset" {
		t.Errorf("%q", got)
	}
	if got := workspace.Errorf(workspace.CodeGone, "gone").Error(); got != "gone: gone" {
		t.Errorf("%q", got)
	}
	if workspace.CodeOf(cause) != "" || workspace.CodeOf(nil) != "" {
		t.Error("a code out of nothing")
	}
}

// dns1123 is what Kubernetes takes for a name.
var dns1123 = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Names follow from IDs, so that a retry finds what an earlier attempt created.
func TestNames(t *testing.T) {
	t.Parallel()
	id := workspace.ID(uuid.Must(uuid.NewV7()).String())
	for _, name := range []string{id.ContainerName(), id.VolumeName()} {
		if !dns1123.MatchString(name) || !strings.Contains(name, string(id)) {
			t.Errorf("name %q", name)
		}
	}
	if got, ok := workspace.IDOfVolume(id.VolumeName()); !ok || got != id {
		t.Errorf("IDOfVolume(%q) = %q, %v", id.VolumeName(), got, ok)
	}
	for _, name := range []string{"", "ws--home", string(id), "ws-" + string(id), string(id) + "-home", "ws-" + string(id) + "-aside-1"} {
		if got, ok := workspace.IDOfVolume(name); ok {
			t.Errorf("IDOfVolume(%q) = %q", name, got)
		}
	}
	if id.ContainerName() != "codehub-ws-"+string(id) || id.VolumeName() != "ws-"+string(id)+"-home" {
		t.Errorf("names %s, %s", id.ContainerName(), id.VolumeName())
	}
	if name := id.DockerName(); len(name) <= 63 || strings.Contains(name, ".") {
		t.Errorf("%s can be a label of DNS", name)
	}
}

func TestValidID(t *testing.T) {
	t.Parallel()
	good := "019a7c1e-3f00-7abc-8def-0123456789ab"
	for s, want := range map[string]bool{
		good:                                   true,
		strings.ToUpper(good):                  false,
		good[:35]:                              false,
		good + "0":                             false,
		"{" + good[1:35] + "}":                 false,
		good[:35] + "g":                        false,
		good[:35] + "/":                        false,
		good[:35] + "\n":                       false,
		good[:8] + "0" + good[9:]:              false,
		good[:34] + "é":                        false,
		"":                                     false,
		"../../../../../../../../etc/passwd!!": false,
		strings.ReplaceAll(good, "-", "")[:32] + "0000": false,
	} {
		if got := workspace.ValidID(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// Whatever is taken for an id can stand in paths, names and labels.
func FuzzValidID(f *testing.F) {
	f.Add("019a7c1e-3f00-7abc-8def-0123456789ab")
	f.Add("019a7c1e-3f00-7abc-8def-0123456789aB")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := uuid.Parse(s)
		canonical := err == nil && u.String() == s
		if got := workspace.ValidID(s); got != canonical {
			t.Errorf("%q: %v, canonical %v", s, got, canonical)
		}
	})
}

// A text that users edit cannot be forgotten: Texts describes every field of Edit.
func TestTextsDescribeEdit(t *testing.T) {
	t.Parallel()
	edit := reflect.TypeFor[workspace.Edit]()
	if len(workspace.Texts) != edit.NumField() {
		t.Errorf("%d texts are described, %d can be edited", len(workspace.Texts), edit.NumField())
	}
	for _, d := range workspace.Texts {
		var e workspace.Edit
		value := "new " + d.Name
		*d.New(&e) = &value
		field, ok := edit.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, d.Name) })
		if !ok || reflect.ValueOf(e).FieldByIndex(field.Index).Interface() != &value {
			t.Errorf("%s: New returns another field", d.Name)
		}
		var w workspace.Workspace
		if !e.Apply(&w) || *d.Current(&w) != value || reflect.ValueOf(w).FieldByName(field.Name).String() != value {
			t.Errorf("%s: Apply did not change it", d.Name)
		}
		if e.Apply(&w) {
			t.Errorf("%s: Apply reports a change to the same value", d.Name)
		}
	}
}
