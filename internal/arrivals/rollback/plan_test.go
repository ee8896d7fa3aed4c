package rollback

import (
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

const id workspace.ID = "019a7c1e-3f00-7abc-8def-0123456789ab"

var (
	now     = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	earlier = now.Add(-time.Hour)
)

const grace = 2 * time.Hour

// row is a row with a home in this state.
func row(state workspace.HomeState, claim, key string, known ...string) *postgres.RollbackRow {
	r := &postgres.RollbackRow{
		ID: id, Owner: "ann", Name: "work", Storage: workspace.StorageDockerVolume, Phase: workspace.PhaseStandby,
		Home: workspace.Home{State: state, Claim: claim}, ArchiveKey: key, Known: map[string]bool{},
	}
	for _, k := range append(known, key) {
		r.Known[k] = true
	}
	return r
}

func deleted(r *postgres.RollbackRow, ago time.Duration) *postgres.RollbackRow {
	at := now.Add(-ago)
	r.DeletedAt = &at
	return r
}

func volume(claim string) *runtime.Volume {
	return &runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: claim, Seeded: true, Owner: "bob", Name: "made"}
}

func folder(claim string) *runtime.Volume {
	v := volume(claim)
	v.Storage = workspace.StorageLocalDir
	return v
}

func half(claim string) *runtime.Volume {
	return &runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: claim}
}

func removing(claim string) *runtime.Volume {
	return &runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: claim, Removing: true}
}

func running() *runtime.Container {
	return &runtime.Container{Workspace: id, State: runtime.ContainerRunning}
}

// archives are those with these keys, newest first, the newest an hour old.
func archives(keys ...string) (out []Archive) {
	for i, k := range keys {
		out = append(out, Archive{Archive: workspace.Archive{Key: k, WorkspaceID: id, CreatedAt: earlier.Add(-time.Duration(i) * time.Hour)}, Owner: "eve", Name: "stored"})
	}
	return out
}

func TestPlanTakesNewestCopy(t *testing.T) {
	t.Parallel()
	const (
		live, absent, filling, archived, deleting = workspace.HomeLive, workspace.HomeAbsent, workspace.HomeFilling, workspace.HomeArchived, workspace.HomeDeleting
		day                                       = 24 * time.Hour
	)
	type want struct {
		action             Action
		key                string
		isNew, undel, lost bool
	}
	for name, c := range map[string]struct {
		v    View
		want want
	}{
		"nothing changed, live":       {View{Row: row(live, "c", ""), Volume: volume("c")}, want{action: Keep}},
		"nothing changed, archived":   {View{Row: row(absent, "", "a"), Archives: archives("a")}, want{action: Keep}},
		"nothing yet":                 {View{Row: row(absent, "", "")}, want{action: Keep}},
		"archived in between":         {View{Row: row(live, "c", ""), Archives: archives("a")}, want{action: TakeArchive, key: "a"}},
		"restored in between":         {View{Row: row(absent, "", "a"), Volume: volume("c"), Archives: archives("a")}, want{action: TakeVolume}},
		"archived, restored, again":   {View{Row: row(absent, "", "a"), Archives: archives("b", "a")}, want{action: TakeArchive, key: "b"}},
		"another volume, live":        {View{Row: row(live, "c", ""), Volume: volume("d"), Archives: archives("a")}, want{action: TakeVolume, key: "a"}},
		"archive of this very volume": {View{Row: row(live, "c", ""), Volume: volume("c"), Archives: archives("a")}, want{action: Keep, key: "a"}},
		"volume still to be removed":  {View{Row: row(archived, "c", "a"), Volume: volume("c"), Archives: archives("a")}, want{action: TakeVolume}},
		"removed and archived again":  {View{Row: row(archived, "c", "a"), Archives: archives("b", "a")}, want{action: TakeArchive, key: "b"}},
		"an older one was chosen": {
			View{Row: row(absent, "", "a", "b"), Archives: archives("b", "a")}, want{action: Keep}},
		"its records were pruned":         {View{Row: row(live, "c", ""), Volume: half("c"), Archives: archives("a")}, want{action: Keep}},
		"its removal had begun":           {View{Row: row(live, "c", ""), Volume: removing("c"), Archives: archives("a")}, want{action: TakeArchive, key: "a"}},
		"being restored":                  {View{Row: row(filling, "c", "a"), Volume: half("c"), Archives: archives("a")}, want{action: Keep}},
		"restore of a newer one":          {View{Row: row(absent, "", "a"), Volume: half("d"), Archives: archives("b", "a")}, want{action: TakeArchive, key: "b"}},
		"runs on an unmarked volume":      {View{Row: row(absent, "", "a"), Volume: half("d"), Container: running(), Archives: archives("a")}, want{action: TakeVolume}},
		"gone":                            {View{Row: row(live, "c", "")}, want{action: Keep, lost: true}},
		"its archive is gone, older left": {View{Row: row(absent, "", "b", "a"), Archives: archives("a")}, want{action: TakeArchive, key: "a"}},

		"no row, volume":                {View{Volume: volume("c")}, want{action: TakeVolume, isNew: true}},
		"no row, volume and archive":    {View{Volume: volume("c"), Archives: archives("a")}, want{action: TakeVolume, isNew: true}},
		"no row, archive":               {View{Archives: archives("b", "a")}, want{action: TakeArchive, key: "b", isNew: true}},
		"no row, half":                  {View{Volume: half("c")}, want{action: Keep}},
		"deleted":                       {View{Row: deleted(row(live, "c", ""), time.Hour), Volume: volume("c")}, want{action: Keep}},
		"deleted, archived":             {View{Row: deleted(row(absent, "", "a"), time.Hour/2), Archives: archives("a")}, want{action: Keep}},
		"deleted, and runs":             {View{Row: deleted(row(live, "c", ""), time.Hour), Volume: volume("c"), Container: running()}, want{action: TakeVolume, undel: true}},
		"deleted, another volume":       {View{Row: deleted(row(live, "c", ""), time.Hour), Volume: volume("d")}, want{action: TakeVolume, undel: true}},
		"deleted, archived since":       {View{Row: deleted(row(live, "c", ""), 3*time.Hour), Archives: archives("a")}, want{action: TakeArchive, key: "a", undel: true}},
		"deletion long due, still live": {View{Row: deleted(row(live, "c", ""), day), Volume: volume("c")}, want{action: TakeVolume, undel: true}},
		"deletion long due, archive":    {View{Row: deleted(row(absent, "", "a"), day), Archives: archives("a")}, want{action: TakeArchive, key: "a", undel: true}},
		"deletion under way":            {View{Row: deleted(row(deleting, "c", ""), day), Volume: volume("c")}, want{action: Keep}},
		"deleted and gone":              {View{Row: deleted(row(live, "c", ""), day)}, want{action: Keep}},
	} {
		c.v.ID = id
		steps := Plan([]View{c.v}, Facts{LedUntil: now, Grace: grace})
		if len(steps) != 1 {
			t.Errorf("%s: %d steps", name, len(steps))
			continue
		}
		s := steps[0]
		got := want{action: s.Action, isNew: s.New, undel: s.Undelete, lost: s.Lost}
		if s.Archive != nil {
			got.key = s.Archive.Key
		}
		if got != c.want || s.Reason == "" {
			t.Errorf("%s: %+v (%s), want %+v", name, got, s.Reason, c.want)
		}
	}
	if steps := Plan([]View{{ID: id, Container: running()}}, Facts{LedUntil: now, Grace: grace}); len(steps) != 0 {
		t.Errorf("a container alone: %+v", steps)
	}
}

// The reason for taking an archive tells one that the database does not know from
// one that replaces a lost copy.
func TestPlanReasonsForArchives(t *testing.T) {
	t.Parallel()
	const live, absent = workspace.HomeLive, workspace.HomeAbsent
	for name, c := range map[string]struct {
		v    View
		want Reason
	}{
		"newer than the database":  {View{Row: row(live, "c", ""), Archives: archives("a")}, ArchiveNewer},
		"a later one":              {View{Row: row(absent, "", "a"), Archives: archives("b", "a")}, ArchiveNewer},
		"volume gone":              {View{Row: row(live, "c", "a"), Archives: archives("a")}, VolumeGone},
		"archive gone, older left": {View{Row: row(absent, "", "b", "a"), Archives: archives("a")}, ArchiveGone},
	} {
		c.v.ID = id
		if s := Plan([]View{c.v}, Facts{LedUntil: now, Grace: grace})[0]; s.Action != TakeArchive || s.Reason != c.want {
			t.Errorf("%s: %s because %s, want %s", name, s.Action, s.Reason, c.want)
		}
	}
}

// A volume that is not taken and has the home's name would block its restore.
func TestPlanSetsBlockingVolumesAside(t *testing.T) {
	t.Parallel()
	const absent, filling = workspace.HomeAbsent, workspace.HomeFilling
	for name, c := range map[string]struct {
		v        View
		action   Action
		setAside bool
	}{
		"restore of the same archive": {View{Row: row(absent, "", "a"), Volume: half("d"), Archives: archives("a")}, TakeArchive, true},
		"restore of a newer archive":  {View{Row: row(absent, "", "a"), Volume: half("d"), Archives: archives("b", "a")}, TakeArchive, true},
		"half-filled, known":          {View{Row: row(filling, "c", "a"), Volume: half("c"), Archives: archives("a")}, Keep, false},
		"half-filled, newer archive":  {View{Row: row(filling, "c", "a"), Volume: half("c"), Archives: archives("b", "a")}, TakeArchive, false},
		"another attempt to fill it":  {View{Row: row(filling, "c", "a"), Volume: half("d"), Archives: archives("a")}, TakeArchive, true},
		"removal had begun":           {View{Row: row(absent, "", "a"), Volume: removing("d"), Archives: archives("a")}, TakeArchive, false},
		"removal is known":            {View{Row: row(workspace.HomeArchived, "d", "a"), Volume: removing("d"), Archives: archives("a")}, Keep, false},
		"not in the database":         {View{Volume: half("d"), Archives: archives("a")}, TakeArchive, true},
	} {
		c.v.ID = id
		s := Plan([]View{c.v}, Facts{LedUntil: now, Grace: grace})[0]
		if s.Action != c.action || s.SetAside != c.setAside {
			t.Errorf("%s: %s, set aside: %v (%s)", name, s.Action, s.SetAside, s.Reason)
		}
	}
}

// Only what shows that a deletion was undone after the backup undoes it.
func TestPlanKeepsDeletions(t *testing.T) {
	t.Parallel()
	since, held := now.Add(-30*time.Minute), now.Add(-time.Minute)
	gone := deleted(row(workspace.HomeLive, "c", ""), 24*time.Hour)
	for name, c := range map[string]struct {
		v      View
		facts  Facts
		undone bool
	}{
		"deleted on hold, still running":     {View{Row: deleted(row(workspace.HomeLive, "c", ""), 10*time.Minute), Volume: volume("c"), Container: running()}, Facts{LedUntil: now, HoldSince: &since}, false},
		"deleted before, running":            {View{Row: deleted(row(workspace.HomeLive, "c", ""), time.Hour), Volume: volume("c"), Container: running()}, Facts{LedUntil: now, HoldSince: &since}, true},
		"overdue while a server led":         {View{Row: gone, Volume: volume("c")}, Facts{LedUntil: held, HoldSince: &held}, true},
		"no server led since":                {View{Row: gone, Volume: volume("c")}, Facts{LedUntil: gone.DeletedAt.Add(time.Minute), HoldSince: &held}, false},
		"Docker went back with the database": {View{Row: gone, Volume: volume("c")}, Facts{LedUntil: held, HoldSince: &held, VolumesAsOf: gone.DeletedAt}, false},
	} {
		c.v.ID, c.facts.Grace = id, grace
		if s := Plan([]View{c.v}, c.facts)[0]; s.Undelete != c.undone {
			t.Errorf("%s: undeleted %v (%s)", name, s.Undelete, s.Reason)
		}
	}
}

// An archive that was complete and not verified at the time of the backup may
// have become the home's since. It is not passed over for an older one.
func TestPlanTakesUnverifiedArchive(t *testing.T) {
	t.Parallel()
	r := row(workspace.HomeLive, "c", "a")
	r.Unverified = map[string]bool{"b": true}
	if s := Plan([]View{{ID: id, Row: r, Archives: archives("b", "a")}}, Facts{LedUntil: now, Grace: grace})[0]; s.Action != TakeArchive || s.Archive.Key != "b" {
		t.Errorf("live at the backup: %+v", s)
	}
	r = row(workspace.HomeAbsent, "", "a")
	r.Unverified = map[string]bool{"b": true}
	if s := Plan([]View{{ID: id, Row: r, Archives: archives("b", "a")}}, Facts{LedUntil: now, Grace: grace})[0]; s.Action != Keep {
		t.Errorf("archived at the backup: %+v", s)
	}
}

// After a snapshot of the whole machine was restored, volumes are as old as the
// database, and an archive that was made since is newer.
func TestPlanAfterMachineSnapshot(t *testing.T) {
	t.Parallel()
	before, since := earlier.Add(-time.Minute), earlier.Add(time.Minute) // the newest archive is from earlier
	for name, c := range map[string]struct {
		v        View
		asOf     *time.Time
		action   Action
		setAside bool
	}{
		"archived since":              {View{Row: row(workspace.HomeLive, "c", ""), Volume: volume("c"), Archives: archives("a")}, &before, TakeArchive, true},
		"archived before":             {View{Row: row(workspace.HomeLive, "c", ""), Volume: volume("c"), Archives: archives("a")}, &since, Keep, false},
		"archive that is not current": {View{Row: row(workspace.HomeLive, "c", "", "a"), Volume: volume("c"), Archives: archives("a")}, &before, TakeArchive, true},
		"Docker may be newer":         {View{Row: row(workspace.HomeLive, "c", ""), Volume: volume("c"), Archives: archives("a")}, nil, Keep, false},
		"running":                     {View{Row: row(workspace.HomeLive, "c", ""), Volume: volume("c"), Container: running(), Archives: archives("a")}, &before, Keep, false},
		"another volume":              {View{Row: row(workspace.HomeLive, "c", ""), Volume: volume("d"), Archives: archives("a")}, &before, TakeArchive, true},
		"volume to be removed":        {View{Row: row(workspace.HomeArchived, "c", "a"), Volume: volume("c"), Archives: archives("b", "a")}, &before, TakeArchive, true},
		"being restored":              {View{Row: row(workspace.HomeFilling, "c", "a"), Volume: half("c"), Archives: archives("b", "a")}, &before, TakeArchive, false},
		"removal had begun":           {View{Row: row(workspace.HomeArchived, "c", "a"), Volume: removing("c"), Archives: archives("b", "a")}, &before, TakeArchive, false},
		"not in the database":         {View{Volume: volume("c"), Archives: archives("a")}, &before, TakeArchive, true},
		"database newer than Docker":  {View{Row: row(workspace.HomeAbsent, "", "a"), Volume: volume("c"), Archives: archives("a")}, &before, TakeArchive, true},
		"folder":                      {View{Row: row(workspace.HomeLive, "c", ""), Volume: folder("c"), Archives: archives("a")}, &before, Keep, false},
		"deleted, archived since":     {View{Row: deleted(row(workspace.HomeLive, "c", ""), 3*time.Hour), Volume: volume("c"), Archives: archives("a")}, &before, TakeArchive, true},
	} {
		c.v.ID = id
		s := Plan([]View{c.v}, Facts{LedUntil: now, Grace: grace, VolumesAsOf: c.asOf})[0]
		if s.Action != c.action || s.SetAside != c.setAside {
			t.Errorf("%s: %s, set aside: %v (%s)", name, s.Action, s.SetAside, s.Reason)
		}
	}
}

func TestStepNamesOwnerAndWorkspace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		v           View
		owner, name string
	}{
		"row":     {View{ID: id, Row: row(workspace.HomeLive, "c", ""), Volume: volume("c")}, "ann", "work"},
		"volume":  {View{ID: id, Volume: volume("c")}, "bob", "made"},
		"archive": {View{ID: id, Volume: volume("c"), Archives: archives("a")}, "eve", "stored"},
		"neither": {View{ID: id, Volume: &runtime.Volume{Workspace: id, Claim: "c", Seeded: true}}, "", "workspace-019a7c1e"},
	} {
		s := Step{View: c.v}
		if s.Owner() != c.owner || s.Name() != c.name {
			t.Errorf("%s: %q of %q", name, s.Name(), s.Owner())
		}
	}
}

func TestChooseAppliesOnlyAndKeepDatabase(t *testing.T) {
	t.Parallel()
	const other workspace.ID = "019a7c1e-3f00-7abc-8def-0123456789ac"
	second := row(workspace.HomeLive, "c", "")
	second.Name = "other"
	steps := Plan([]View{
		{ID: id, Row: row(workspace.HomeLive, "c", ""), Volume: volume("d")},
		{ID: other, Row: second, Volume: volume("d")},
	}, Facts{LedUntil: now, Grace: grace})
	actions := func(c Choice) [2]Action {
		t.Helper()
		got, err := Choose(steps, c)
		if err != nil {
			t.Fatal(err)
		}
		return [2]Action{got[0].Action, got[1].Action}
	}
	if got := actions(Choice{}); got != [2]Action{TakeVolume, TakeVolume} {
		t.Error(got)
	}
	if got := actions(Choice{Only: []string{"other"}}); got != [2]Action{Keep, TakeVolume} {
		t.Error(got)
	}
	if got := actions(Choice{KeepDatabase: []string{string(other)}}); got != [2]Action{TakeVolume, Keep} {
		t.Error(got)
	}
	if _, err := Choose(steps, Choice{Only: []string{"nobody's"}}); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Error(err)
	}
	second.Name = "work"
	if _, err := Choose(steps, Choice{Only: []string{"work"}}); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Error(err)
	}
	if steps[0].Action != TakeVolume {
		t.Error("the plan was changed")
	}
}

// A home that was live again after the backup is not left to a row that would
// have it removed.
func TestChooseRefusesRowThatRemovesNewestCopy(t *testing.T) {
	t.Parallel()
	const other workspace.ID = "019a7c1e-3f00-7abc-8def-0123456789ac"
	second := row(workspace.HomeLive, "c", "")
	second.Name = "other"
	for _, state := range []workspace.HomeState{workspace.HomeFilling, workspace.HomeArchived, workspace.HomeDiscarding} {
		steps := Plan([]View{
			{ID: id, Row: row(state, "c", "a"), Volume: volume("c"), Archives: archives("a")},
			{ID: other, Row: second, Volume: volume("d")},
		}, Facts{LedUntil: now, Grace: grace})
		if _, err := Choose(steps, Choice{KeepDatabase: []string{string(id)}}); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("%s kept: %v", state, err)
		}
		got, err := Choose(steps, Choice{Only: []string{"other"}})
		if err != nil || got[0].Action != TakeVolume {
			t.Errorf("%s, only the other one: %+v, %v", state, got, err)
		}
	}
}
