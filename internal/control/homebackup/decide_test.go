package homebackup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// ago is a moment before now.
func ago(d time.Duration) *time.Time {
	at := now.Add(-d)
	return &at
}

// home returns a candidate that was backed up when half of the interval had passed, and is not used.
func home(id, owner string, change ...func(*candidate)) candidate {
	c := candidate{
		ID: workspace.ID(id), OwnerID: owner, Phase: workspace.PhaseStandby, Operation: workspace.OpNone, Home: workspace.HomeLive,
		CreatedAt: *ago(100 * time.Hour), PhaseChangedAt: *ago(50 * time.Hour), LastKey: "key", LastAt: ago(30 * time.Minute),
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func running(c *candidate) { c.Phase = workspace.PhaseRunning }

func last(d time.Duration) func(*candidate) { return func(c *candidate) { c.LastAt = ago(d) } }

func waiting(cause string) func(*candidate) {
	return func(c *candidate) {
		c.PresentID, c.PresentState, c.PresentCause, c.PresentAt = "b-"+string(c.ID), workspace.BackupWaiting, cause, ago(time.Second)
	}
}

func during(o workspace.Operation) func(*candidate) { return func(c *candidate) { c.Operation = o } }

func in(s workspace.HomeState) func(*candidate) { return func(c *candidate) { c.Home = s } }

func TestDecide(t *testing.T) {
	t.Parallel()
	seconds := func(n int) func(*candidate) { return func(c *candidate) { c.Interval = &n } }
	for name, test := range map[string]struct {
		list []candidate
		v    view
		want string
	}{
		"not used":                  {list: []candidate{home("1", "ann", last(40*time.Hour))}},
		"running, too early":        {list: []candidate{home("1", "ann", running)}},
		"running":                   {list: []candidate{home("1", "ann", running, last(time.Hour))}, want: "1 schedule"},
		"used since":                {list: []candidate{home("1", "ann", last(40*time.Hour), func(c *candidate) { c.LastAccessAt = ago(39 * time.Hour) })}, want: "1 schedule, late 1"},
		"stopped since":             {list: []candidate{home("1", "ann", last(2*time.Hour), func(c *candidate) { c.PhaseChangedAt = *ago(time.Hour) })}, want: "1 schedule"},
		"never, new":                {list: []candidate{home("1", "ann", func(c *candidate) { c.LastAt, c.CreatedAt = nil, *ago(time.Minute) })}},
		"never":                     {list: []candidate{home("1", "ann", func(c *candidate) { c.LastAt, c.CreatedAt = nil, *ago(time.Hour) })}, want: "1 schedule"},
		"own interval":              {list: []candidate{home("1", "ann", running, seconds(1200))}, want: "1 schedule"},
		"off for the workspace":     {list: []candidate{home("1", "ann", running, last(9*time.Hour), seconds(0))}},
		"off":                       {list: []candidate{home("1", "ann", running, last(9*time.Hour))}, v: view{interval: -1}},
		"off, requested":            {list: []candidate{home("1", "ann", waiting("request"))}, v: view{interval: -1}, want: "1 request"},
		"requested":                 {list: []candidate{home("1", "ann", waiting("request"))}, want: "1 request"},
		"starting":                  {list: []candidate{home("1", "ann", waiting("request"), during(workspace.OpStarting))}, want: "1 request"},
		"archiving":                 {list: []candidate{home("1", "ann", waiting("request"), during(workspace.OpArchiving))}},
		"archiving, scheduled":      {list: []candidate{home("1", "ann", running, last(2*time.Hour), during(workspace.OpArchiving))}},
		"after a hand-over":         {list: []candidate{home("1", "ann", waiting("hand_over"))}, want: "1 hand_over"},
		"hand-over, backups off":    {list: []candidate{home("1", "ann", waiting("hand_over"), seconds(0))}, want: "refused 1"},
		"hand-over, paused":         {list: []candidate{home("1", "ann", waiting("hand_over"))}, v: view{pausedTo: map[workspace.ID]time.Time{"1": now.Add(time.Second)}}},
		"owner at the limit":        {list: []candidate{home("1", "ann", running, last(4*time.Hour)), home("2", "ann", waiting("request"))}, v: view{full: map[string]bool{"ann": true}}, want: "2 request, full 1"},
		"before the archive":        {list: []candidate{home("1", "ann", waiting("archive"), during(workspace.OpArchiving))}, want: "1 archive step"},
		"awaited by an operation":   {list: []candidate{home("1", "ann", waiting("request"), during(workspace.OpArchiving))}, v: view{awaited: map[string]bool{"b-1": true}}, want: "1 request step"},
		"archived":                  {list: []candidate{home("1", "ann", waiting("request"), in(workspace.HomeAbsent))}, want: "refused 1"},
		"restoring":                 {list: []candidate{home("1", "ann", waiting("request"), in(workspace.HomeAbsent), during(workspace.OpRestoring))}},
		"failed just now":           {list: []candidate{home("1", "ann", running, last(time.Hour), func(c *candidate) { c.FailedAt = ago(9 * time.Minute) })}},
		"failed before":             {list: []candidate{home("1", "ann", running, last(time.Hour), func(c *candidate) { c.FailedAt = ago(10 * time.Minute) })}, want: "1 schedule"},
		"paused":                    {list: []candidate{home("1", "ann", running, last(time.Hour))}, v: view{pausedTo: map[workspace.ID]time.Time{"1": now.Add(1)}}},
		"runs already":              {list: []candidate{home("1", "ann", running, last(time.Hour))}, v: view{busy: map[workspace.ID]bool{"1": true}}},
		"damaged, not used":         {list: []candidate{home("1", "ann", func(c *candidate) { c.LastDamaged = true })}, want: "1 schedule"},
		"late":                      {list: []candidate{home("1", "ann", running, last(4*time.Hour))}, v: view{busy: map[workspace.ID]bool{"1": true}}, want: "late 1"},
		"not late":                  {list: []candidate{home("1", "ann", running, last(2*time.Hour))}, v: view{busy: map[workspace.ID]bool{"1": true}}},
		"started after a long time": {list: []candidate{home("1", "ann", last(40*time.Hour), func(c *candidate) { c.PhaseChangedAt = *ago(time.Minute) })}, want: "1 schedule"},
		"requests first": {list: []candidate{
			home("1", "ann", running, last(3*time.Hour)), home("2", "ann", waiting("request")), home("3", "bob", running, last(2*time.Hour)),
		}, want: "2 request, 3 schedule"},
		"each owner in turn": {v: view{most: 3}, list: []candidate{
			home("1", "ann", running, last(175*time.Minute)), home("2", "ann", running, last(170*time.Minute)), home("3", "ann", running, last(165*time.Minute)),
			home("4", "bob", running, last(62*time.Minute)), home("5", "cid", running, last(61*time.Minute)),
		}, want: "1 schedule, 4 schedule, 5 schedule"},
		"an owner's runs count": {v: view{running: map[workspace.ID]string{"9": "ann"}}, list: []candidate{
			home("1", "ann", running, last(2*time.Hour)), home("2", "bob", running, last(time.Hour)),
		}, want: "2 schedule"},
		"all slots in use": {v: view{running: map[workspace.ID]string{"8": "ann", "9": "ann"}}, list: []candidate{
			home("1", "ann", waiting("request")), home("2", "bob", waiting("image")),
		}, want: "2 image step"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := test.v
			v.now = now
			if v.interval == 0 {
				v.interval = time.Hour
			}
			if v.most == 0 {
				v.most = 2
			}
			p := decide(v, test.list)
			var got []string
			for _, d := range p.due {
				got = append(got, string(d.ID)+" "+d.cause+map[bool]string{true: " step"}[d.step])
			}
			for _, c := range p.refused {
				got = append(got, "refused "+string(c.ID))
			}
			for _, id := range p.full {
				got = append(got, "full "+string(id))
			}
			for _, id := range p.late {
				got = append(got, "late "+string(id))
			}
			if text := strings.Join(got, ", "); text != test.want {
				t.Errorf("%q, want %q", text, test.want)
			}
		})
	}
}

func TestExpired(t *testing.T) {
	t.Parallel()
	rule, err := workspace.ParseKeep("3h")
	if err != nil {
		t.Fatal(err)
	}
	var list []postgres.KeptBackup
	for i := range 40 { // one each half hour, the latest first
		list = append(list, postgres.KeptBackup{ID: fmt.Sprint(i), BegunAt: *ago(time.Duration(i) * 30 * time.Minute)})
	}
	list[10].Noted, list[20].VerifiedAt, list[15].VerifiedAt, list[15].Damaged, list[30].VerifiedAt = true, &now, &now, true, &now
	list[25].Asked, list[38].Asked, list[38].BegunAt = true, true, *ago(25 * time.Hour)
	list[39].Noted, list[39].BegunAt = true, *ago(31 * 24 * time.Hour)
	got := expired(rule, list, now)
	for i, b := range list {
		// 12:00, 11:30 and 10:30 are the latest of their hours.
		want := !slices.Contains([]int{0, 1, 3, 10, 20, 25}, i)
		if slices.Contains(got, b.ID) != want {
			t.Errorf("%d of %s: expired is not %v", i, b.BegunAt.Format(time.TimeOnly), want)
		}
	}
}
