// Package rollback compares a restored database with Docker and the bucket, and
// gives every workspace the newest complete copy of its home. Plan decides and
// changes nothing. Service reads the current state and applies the choices in one
// transaction, which also ends the hold (package mark). Nothing is ever removed.
package rollback

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"codehub/internal/arrivals/adopt"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// View is what the database, Docker and the bucket have of one workspace.
type View struct {
	ID        workspace.ID
	Row       *postgres.RollbackRow // nil: not in the database
	Volume    *runtime.Volume       // nil: there is none
	Container *runtime.Container    // nil: there is none
	Archives  []Archive             // complete archives in the bucket, newest first
}

// Archive is a complete archive with the workspace's data from its .meta.
type Archive = adopt.Archive

// Action is what happens to a workspace's row.
type Action string

// Actions.
const (
	Keep        Action = "keep"    // the row stays unchanged
	TakeVolume  Action = "volume"  // the volume is its home
	TakeArchive Action = "archive" // an archive is its home
)

// Step is the decision about one workspace.
type Step struct {
	View
	Action   Action
	New      bool     // its row is added to the database
	Undelete bool     // it is undeleted
	Runs     bool     // its container keeps running
	SetAside bool     // its volume blocks the home and is kept under another name
	Archive  *Archive // the archive to use; otherwise the newest one, if it is not in the database
	Reason   Reason
	Lost     bool // no complete copy of its home is known
}

// unremarkable reports whether an administrator need not look at the step: the workspace
// stays as it is, and its home is complete as far as known.
func (s Step) unremarkable() bool { return s.Action == Keep && !s.Lost && s.Archive == nil }

// Reason is why a step was decided; Text is its description.
type Reason string

// Reasons.
const (
	Deleted          Reason = "deleted"
	DeletionPending  Reason = "deletion_pending"
	CreatedLater     Reason = "created_later"
	Incomplete       Reason = "incomplete"
	UndeletedRunning Reason = "undeleted_running"
	UndeletedVolume  Reason = "undeleted_volume"
	UndeletedArchive Reason = "undeleted_archive"
	UndeletedOverdue Reason = "undeleted_overdue"
	VolumeUnchanged  Reason = "volume_unchanged"
	VolumeNewer      Reason = "volume_newer"
	VolumeAndArchive Reason = "volume_and_archive"
	ArchiveUnchanged Reason = "archive_unchanged"
	ArchiveNewer     Reason = "archive_newer"
	ArchiveGone      Reason = "archive_gone"
	VolumeGone       Reason = "volume_gone"
	NoHome           Reason = "no_home"
	NoCopy           Reason = "no_copy"
	KeptByChoice     Reason = "kept_by_choice"
)

var reasonTexts = map[Reason]string{
	Deleted:          "The workspace is deleted.",
	DeletionPending:  "The workspace is deleted. It can be undeleted for a full grace period again.",
	CreatedLater:     "The workspace was created after the backup.",
	Incomplete:       "The volume is incomplete and is not changed.",
	UndeletedRunning: "Its container is running, so its deletion was undone after the backup.",
	UndeletedVolume:  "Its volume was created after the backup, so its deletion was undone.",
	UndeletedArchive: "It was archived after it was deleted, so its deletion was undone.",
	UndeletedOverdue: "Its home still exists long after the deletion was due, so its deletion was undone.",
	VolumeUnchanged:  "Its volume is the one in the database.",
	VolumeNewer:      "Its volume was created after the backup.",
	VolumeAndArchive: "Its volume is used. Its newest archive is not in the database. If the volumes were restored as well, compare both.",
	ArchiveUnchanged: "Its archive is the one in the database.",
	ArchiveNewer:     "Its newest archive was created after the backup.",
	ArchiveGone:      "Its archive is gone, so the newest remaining one is used.",
	VolumeGone:       "Its volume is gone, so its newest archive is used.",
	NoHome:           "It has no home yet.",
	NoCopy:           "No complete copy of its home was found. It was deleted after the backup, or it is lost.",
	KeptByChoice:     "An administrator chose to keep the database's state.",
}

// Reasons lists every reason.
func Reasons() []Reason { return slices.Sorted(maps.Keys(reasonTexts)) }

// Text is the reason in one or two English sentences.
func (r Reason) Text() string { return reasonTexts[r] }

// Owner and Name are the owner's username and the workspace's name, if known.
func (s Step) Owner() string {
	if s.Row != nil {
		return s.Row.Owner
	}
	return s.described(func(v *runtime.Volume) string { return v.Owner }, func(a Archive) string { return a.Owner })
}

// Name is the workspace's name; see Owner.
func (s Step) Name() string {
	if s.Row != nil {
		return s.Row.Name
	}
	name := s.described(func(v *runtime.Volume) string { return v.Name }, func(a Archive) string { return a.Name })
	return cmp.Or(name, "workspace-"+string(s.ID[:8]))
}

// described prefers the newest archive's data, which is later than the volume's
// creation.
func (s Step) described(volume func(*runtime.Volume) string, archive func(Archive) string) string {
	said := ""
	if len(s.Archives) > 0 {
		said = archive(s.Archives[0])
	}
	if s.Volume != nil {
		said = cmp.Or(said, volume(s.Volume))
	}
	return said
}

// slack is how long after its grace a deletion counts as carried out, unless
// something prevented it.
const slack = 10 * time.Minute

// Facts are the times that the plan depends on, all by the database's clock.
type Facts struct {
	Grace time.Duration // how long a deletion can be undone
	// LedUntil is when a database last led here. Nothing was removed since.
	LedUntil  time.Time
	HoldSince *time.Time // nil: codehub is not on hold
	// WaitsSince is when all deletions began to wait their whole grace again;
	// nil: never.
	WaitsSince *time.Time
	// VolumesAsOf is set if Docker is older than the bucket, as after a
	// restored snapshot of the machine: no volume is newer. It does not apply
	// to folders (local-dir).
	VolumesAsOf *time.Time
}

// Plan decides about every workspace, in the order of their ids.
func Plan(views []View, facts Facts) []Step {
	out := make([]Step, 0, len(views))
	for _, v := range views {
		s := plan(v, facts)
		if s.Row == nil && s.Action == Keep && s.Volume == nil {
			continue // nothing to report
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Step) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func plan(v View, facts Facts) Step {
	s := Step{View: v, Action: Keep, Runs: v.running()}
	if v.Row == nil {
		return s.lostRow(facts)
	}
	if v.Row.DeletedAt != nil {
		why := v.usedSince(facts)
		if why == "" {
			s.Reason = DeletionPending
			if v.Row.Phase == workspace.PhaseDeleted {
				s.Reason = Deleted
			}
			return s
		}
		s.Undelete, s.Reason = true, why
	}
	return s.newest(facts)
}

// lostRow decides about a workspace that is not in the database.
func (s Step) lostRow(facts Facts) Step {
	if a := s.afterVolume(facts); a != nil {
		s.New, s.Reason = true, CreatedLater
		return s.takeArchive(a)
	}
	switch {
	case s.complete():
		s.Action, s.New = TakeVolume, true
		s.Reason = CreatedLater
	case len(s.Archives) > 0:
		s.New, s.Reason = true, CreatedLater
		return s.takeArchive(&s.Archives[0])
	case s.Volume != nil:
		s.Reason = Incomplete
	}
	return s
}

// usedSince returns what shows that the workspace was undeleted after the
// backup.
func (v View) usedSince(facts Facts) Reason {
	deleted := *v.Row.DeletedAt
	if facts.HoldSince != nil && !deleted.Before(*facts.HoldSince) {
		return "" // deleted by its owner in this database
	}
	newest := Archive{}
	if len(v.Archives) > 0 {
		newest = v.Archives[0]
	}
	var restarted time.Time
	if facts.WaitsSince != nil {
		restarted = *facts.WaitsSince
	}
	due := lifecycle.GraceEnds(deleted, restarted, facts.Grace+slack)
	switch {
	case v.running():
		return UndeletedRunning
	case v.complete() && v.Volume.Claim != v.Row.Home.Claim:
		return UndeletedVolume
	case newest.Key != "" && newest.CreatedAt.After(deleted):
		return UndeletedArchive
	case v.Row.Phase == workspace.PhaseDeleted:
		return ""
	case facts.LedUntil.After(due) && facts.VolumesAsOf == nil && v.Row.Home.State == workspace.HomeLive && v.complete(),
		facts.LedUntil.After(due) && v.Row.Home.State == workspace.HomeAbsent && v.has(v.Row.ArchiveKey):
		return UndeletedOverdue
	}
	return ""
}

// newest decides about a workspace that is not deleted or was undeleted. A
// complete volume is at least as new as any archive, since a verified archive
// removes it, unless Docker was restored together with the database.
func (s Step) newest(facts Facts) Step {
	row := s.Row
	because := func(reason Reason) {
		if s.Reason == "" {
			s.Reason = reason
		}
	}
	current := s.Volume != nil && !s.Volume.Removing && row.Home.State == workspace.HomeLive && s.Volume.Claim == row.Home.Claim
	if a := s.afterVolume(facts); a != nil {
		because(ArchiveNewer)
		return s.takeArchive(a)
	}
	if s.complete() {
		removed := row.Home.State == workspace.HomeDeleting && s.Volume.Claim == row.Home.Claim
		if a := s.best(); a != nil && !known(row, *a) && (current || s.Volume.Claim != row.Home.Claim) {
			s.Archive = a
			because(VolumeAndArchive)
		}
		if !s.Undelete && (current || removed) {
			because(VolumeUnchanged)
			return s
		}
		s.Action = TakeVolume
		because(VolumeNewer)
		return s
	}
	if current && !s.Undelete {
		because(VolumeUnchanged)
		return s
	}
	best := s.best()
	switch {
	case row.Home.State != workspace.HomeLive && workspace.SharedArchive(row.ID, row.ArchiveKey) && !s.Undelete && (best == nil || known(row, *best)):
		because(ArchiveUnchanged) // a backup or the archive of another workspace, which is not listed here
	case best == nil:
		if row.Home.State == workspace.HomeLive || row.ArchiveKey != "" {
			s.Lost = true
			s.Reason = NoCopy
			s.Undelete = false
			return s
		}
		because(NoHome)
	case row.Home.State != workspace.HomeLive && best.Key == row.ArchiveKey && !s.Undelete:
		because(ArchiveUnchanged)
		if s.Volume != nil && s.Volume.Claim != "" && s.Volume.Claim != row.Home.Claim {
			return s.takeArchive(best) // so that the volume does not block the restore
		}
	case row.Home.State == workspace.HomeLive && known(row, *best):
		because(VolumeGone)
		return s.takeArchive(best)
	case known(row, *best):
		because(ArchiveGone)
		return s.takeArchive(best)
	default:
		because(ArchiveNewer)
		return s.takeArchive(best)
	}
	return s
}

// takeArchive restores from this archive. A volume that would block the restore
// is set aside, since it may have data that no archive has.
func (s Step) takeArchive(a *Archive) Step {
	s.Action, s.Archive = TakeArchive, a
	s.SetAside = s.Volume != nil && s.Volume.Claim != "" && !s.discards()
	return s
}

// discards reports whether the volume is disposable: its removal has begun, or
// it was never filled according to the database.
func (s Step) discards() bool {
	if s.Volume.Removing || s.Row == nil || s.Row.Home.Claim != s.Volume.Claim {
		return s.Volume.Removing
	}
	return !s.complete() && (s.Row.Home.State == workspace.HomeFilling || s.Row.Home.State == workspace.HomeDiscarding)
}

// best returns the newest archive to use: the row's own, one that was not
// complete in the backup, or, without either, any. Archives that the backup
// knew and did not name were replaced on purpose.
func (s Step) best() *Archive {
	if len(s.Archives) == 0 {
		return nil
	}
	row := s.Row
	for i, a := range s.Archives {
		if row == nil || a.Key == row.ArchiveKey || !known(row, a) {
			return &s.Archives[i]
		}
	}
	return &s.Archives[0]
}

// known reports whether the archive was complete in the database. An archive
// that was complete and not verified while the home was live may have become
// the home's archive since.
func known(row *postgres.RollbackRow, a Archive) bool {
	return row.Known[a.Key] || row.Unverified[a.Key] && row.Home.State != workspace.HomeLive
}

// afterVolume returns the archive that is newer than the volume, if Docker was
// restored to an earlier time. The volume of a running container stays, since
// it may have changed since.
func (s Step) afterVolume(facts Facts) *Archive {
	if s.Volume == nil || s.Volume.Removing || s.Runs || facts.VolumesAsOf == nil || s.Volume.Storage != workspace.StorageDockerVolume {
		return nil
	}
	if a := s.best(); a != nil && a.CreatedAt.After(*facts.VolumesAsOf) {
		return a
	}
	return nil
}

func (v View) has(key string) bool {
	return key != "" && slices.ContainsFunc(v.Archives, func(a Archive) bool { return a.Key == key })
}

func (v View) running() bool {
	return v.Container != nil && v.Container.State == runtime.ContainerRunning
}

// complete reports whether the volume is a complete home. Only a live home has
// a holder; folders have none and always count as held.
func (v View) complete() bool {
	if v.Volume == nil || v.Volume.Claim == "" {
		return false
	}
	held := v.Volume.Held && v.Volume.Storage == workspace.StorageDockerVolume
	return v.Volume.Seeded || v.Volume.Marker != "" || held || v.running()
}

// Choice is an administrator's change to the plan. It names workspaces by id or
// name.
type Choice struct {
	Only         []string // change only these; empty: all
	KeepDatabase []string // leave these as they are in the database
}

// Choose applies the choice to steps. An error names a workspace that is
// missing from the plan or ambiguous.
func Choose(steps []Step, c Choice) ([]Step, error) {
	out := slices.Clone(steps)
	find := func(what string) (int, error) {
		at := -1
		for i, s := range out {
			if string(s.ID) != what && s.Name() != what {
				continue
			}
			if at >= 0 {
				return 0, workspace.Errorf(workspace.CodeInvalid, "There are several workspaces named %q. Give the id.", what)
			}
			at = i
		}
		if at < 0 {
			return 0, workspace.Errorf(workspace.CodeInvalid, "There is no workspace %q in the plan.", what)
		}
		return at, nil
	}
	keep := func(i int) error {
		if out[i].losesVolume() {
			return workspace.Errorf(workspace.CodeInvalid,
				"The database's state would remove the newest copy of %q. Apply the plan for it, and delete the workspace afterwards if you do not need it.", out[i].Name())
		}
		out[i] = Step{View: out[i].View, Action: Keep, Runs: out[i].Runs, Lost: out[i].Lost, Reason: KeptByChoice}
		return nil
	}
	if len(c.Only) > 0 {
		chosen := map[int]bool{}
		for _, what := range c.Only {
			i, err := find(what)
			if err != nil {
				return nil, err
			}
			chosen[i] = true
		}
		for i := range out {
			if chosen[i] || out[i].Action == Keep || out[i].losesVolume() {
				continue
			}
			if err := keep(i); err != nil {
				return nil, err
			}
		}
	}
	for _, what := range c.KeepDatabase {
		i, err := find(what)
		if err != nil {
			return nil, err
		}
		if out[i].Row == nil && out[i].New {
			return nil, workspace.Errorf(workspace.CodeInvalid, "The database does not have the workspace %q.", what)
		}
		if err := keep(i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// losesVolume reports whether the unchanged row would remove the complete
// volume that the step uses, which became live after the backup.
func (s Step) losesVolume() bool {
	return s.Action == TakeVolume && s.Row != nil && s.Row.DeletedAt == nil && s.Row.Home.Claim == s.Volume.Claim &&
		(s.Row.Home.State == workspace.HomeFilling || s.Row.Home.State.Removable())
}

// describe describes a step for logs.
func (s Step) describe() string {
	return fmt.Sprintf("%s (new: %v, undelete: %v, runs: %v)", s.Action, s.New, s.Undelete, s.Runs)
}
