package dashboard

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Values of the mode field of an idle timeout.
const (
	ttlServer = "server"
	ttlNever  = "never"
	ttlAfter  = "after"
)

// ttlUnits are the units of an idle timeout, in seconds, largest first.
var ttlUnits = []int{24 * 3600, 3600, 60, 1}

// Units are the units that the form offers: seconds only if the current value needs them.
func (f *form) Units(which string) []int {
	if f.Value[which+"_ttl_unit"] == "1" {
		return ttlUnits
	}
	return ttlUnits[:3]
}

// showTTL fills in the fields of an idle timeout. which is standby or archive.
func (f *form) showTTL(which string, seconds *int) {
	f.Value[which+"_ttl"], f.Value[which+"_ttl_n"], f.Value[which+"_ttl_unit"] = ttlServer, "", "60"
	switch {
	case seconds == nil:
	case *seconds == 0:
		f.Value[which+"_ttl"] = ttlNever
	default:
		for _, unit := range ttlUnits {
			if *seconds%unit == 0 {
				f.Value[which+"_ttl"], f.Value[which+"_ttl_n"], f.Value[which+"_ttl_unit"] = ttlAfter, strconv.Itoa(*seconds/unit), strconv.Itoa(unit)
				return
			}
		}
	}
}

// showWorking fills in whether processes at work count as activity.
func (f *form) showWorking(on bool) {
	f.Value["working"] = ""
	if on {
		f.Value["working"] = "on"
	}
	f.working() // of a form that was sent
}

// working reads the checkbox of processes at work. A form without it leaves it unchanged.
func (f *form) working() *bool {
	if f.r.PostFormValue("working_shown") == "" {
		return nil
	}
	f.Value["working"] = f.r.PostFormValue("working")
	return new(f.Value["working"] != "")
}

// ttl reads the fields of an idle timeout. A form without them leaves it unchanged.
func (f *form) ttl(which string) (v workspace.Optional[int]) {
	field := which + "_ttl"
	if !f.r.PostForm.Has(field) {
		return v
	}
	for _, part := range []string{field, field + "_n", field + "_unit"} {
		f.Value[part] = strings.TrimSpace(f.r.PostFormValue(part))
	}
	switch f.Value[field] {
	case ttlServer:
		v.Set = true
	case ttlNever:
		never := 0
		v.Set, v.Value = true, &never
	case ttlAfter:
		n, err := strconv.Atoi(f.Value[field+"_n"])
		unit, _ := strconv.Atoi(f.Value[field+"_unit"])
		if err != nil || n < 1 || !slices.Contains(ttlUnits, unit) || n > workspace.MaxTTL/unit {
			f.fail(field, "field.ttl_bad")
			return v
		}
		n *= unit
		v.Set, v.Value = true, &n
	default:
		f.fail(field, "field.required")
	}
	return v
}

// Values of the keep-awake form besides a number of seconds.
const (
	awakeUntil = "until"
	awakeOff   = "off"
)

// awakeFor returns the choices in seconds, at most longest.
func awakeFor(longest time.Duration) []int {
	most := int(longest / time.Second)
	var out []int
	for _, hours := range []int{1, 2, 4, 8, 24} {
		if hours*3600 < most {
			out = append(out, hours*3600)
		}
	}
	return append(out, most)
}

func (d *Dashboard) showKeepAwake(f *form, ws workspace.Workspace) {
	f.Lasting, f.Max = awakeFor(d.KeepAwakeMax), int(d.KeepAwakeMax/time.Second)
	f.Value["awake"] = strconv.Itoa(f.Lasting[0])
	if keptAwake(ws, d.Now()) {
		f.Value["awake"], f.Value["until"] = awakeUntil, ws.KeepAwakeTil.UTC().Format(time.RFC3339)
		f.Value["kept"] = "yes"
	}
}

// keepAwake sets or clears the time until which a workspace is not stopped automatically.
func (d *Dashboard) keepAwake(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	f := d.form("keep-awake", r, &ws)
	until, note := d.awakeUntil(f, r), "awake"
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	if until == nil {
		note = "awake_off"
	}
	d.carryOut(w, r, c, func(ctx context.Context, c workspace.Caller, id workspace.ID, _ *http.Request) (string, error) {
		_, err := d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{KeepAwakeUntil: workspace.Optional[time.Time]{Set: true, Value: until}})
		return note, err
	})
}

// awakeUntil returns the chosen time; nil to turn keep-awake off.
func (d *Dashboard) awakeUntil(f *form, r *http.Request) *time.Time {
	now := d.Now().UTC()
	f.Value["awake"], f.Value["until"] = r.PostFormValue("awake"), r.PostFormValue("until")
	switch f.Value["awake"] {
	case awakeOff:
		return nil
	case awakeUntil:
		at, ok := moment(f.Value["until"])
		if !ok || !at.After(now) || at.After(now.Add(d.KeepAwakeMax+time.Minute)) {
			f.fail("until", "field.until_bad", f.lang.Lasting(d.KeepAwakeMax))
			return nil
		}
		at = earlier(at, now.Add(d.KeepAwakeMax))
		return &at
	}
	n, err := strconv.Atoi(f.Value["awake"])
	if err != nil || n < 1 || n > f.Max {
		f.fail("awake", "field.required")
		return nil
	}
	at := now.Add(time.Duration(n) * time.Second)
	return &at
}

// moment parses a date and time field: with the browser's offset if the script added one, else
// in UTC, the zone of times on pages without scripts.
func moment(s string) (at time.Time, ok bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if at, err := time.Parse(layout, s); err == nil {
			return at.UTC(), true
		}
	}
	return time.Time{}, false
}
