package httpapi

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/gateway/inbound"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// adminListParams are the parameters of the list of all workspaces.
var adminListParams = slices.Concat([]string{"q", "state", "owner", "image", "deleted", "unused_since", "sort", "order"}, pageParams)

// auditParams choose entries of the audit log.
var auditParams = []string{"user", "action", "target", "since", "until"}

// maxMultiple bounds a list in a parameter.
const maxMultiple = 20

func (s *server) listAllWorkspaces(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	f, err := parseAnyFilter(r.URL.Query())
	if err != nil {
		return err
	}
	list, err := s.cfg.Store.AnyWorkspaces(r.Context(), id.Caller, f)
	out := api.AdminWorkspaceList{Workspaces: each(list.Workspaces, s.adminView), Total: list.Total, Bytes: list.Bytes, NextCursor: list.NextCursor}
	return reply(w, http.StatusOK, out, err)
}

func parseAnyFilter(q url.Values) (f postgres.AnyFilter, err error) {
	f = postgres.AnyFilter{Query: q.Get("q"), Owner: q.Get("owner"), Image: q.Get("image"), Sort: q.Get("sort")}
	for name, v := range map[string]string{"q": f.Query, "owner": f.Owner, "image": f.Image} {
		if !utf8.ValidString(v) || utf8.RuneCountInString(v) > maxQuery || strings.ContainsFunc(v, workspace.Unprintable) {
			return f, fieldError(name, "must be at most 255 characters without control characters.")
		}
	}
	f.Page, _ = parsePage(q, maxPage)
	for _, v := range strings.FieldsFunc(q.Get("state"), func(r rune) bool { return r == ',' }) {
		if !slices.Contains(lifecycle.States(), lifecycle.State(v)) || len(f.State) == maxMultiple {
			return f, fieldError("state", "must be states, separated by commas.")
		}
		f.State = append(f.State, lifecycle.State(v))
	}
	if f.Sort != "" && !slices.Contains(postgres.Sorts(), f.Sort) {
		return f, fieldError("sort", "must be one of "+strings.Join(postgres.Sorts(), ", ")+".")
	}
	switch q.Get("order") {
	case "", "asc":
	case "desc":
		f.Descending = true
	default:
		return f, fieldError("order", "must be asc or desc.")
	}
	if f.Deleted, err = boolParam(q, "deleted"); err != nil {
		return f, err
	}
	f.UnusedSince, err = timeParam(q, "unused_since")
	return f, err
}

// timeParam reads a time; zero without the parameter.
func timeParam(q url.Values, name string) (at time.Time, err error) {
	if v := q.Get(name); v != "" {
		if at, err = time.Parse(time.RFC3339, v); err != nil || at.Year() < 1 || at.Year() > 9999 {
			return at, fieldError(name, "is not a time like 2026-12-24T18:30:00Z.")
		}
	}
	return at, nil
}

func (s *server) adminView(ws postgres.AnyWorkspace) api.AdminWorkspace {
	return api.AdminWorkspace{
		Workspace: s.view(ws.Workspace), OwnerID: ws.OwnerID, Owner: ws.Owner, OwnerDisabled: ws.OwnerDisabled,
		HomeBytes: ws.HomeBytes, ArchivesBytes: ws.ArchivesBytes,
		Used:     api.Used{Days: postgres.UsageDays, RunningHours: hours(ws.Spent.RunningSeconds), CPUHours: hours(ws.Spent.CPUSeconds), MemoryGiBHours: gibHours(ws.Spent.MemorySeconds)},
		HandOver: ws.Asked,
	}
}

// hours rounds to a thousandth.
func hours(seconds float64) float64        { return float64(int64(seconds/3.6+0.5)) / 1000 }
func gibHours(byteSeconds float64) float64 { return hours(byteSeconds / (1 << 30)) }

func (s *server) getAnyWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.findAny(r, id)
	return reply(w, http.StatusOK, s.adminView(ws), err)
}

// findAny reads the workspace of the path for an administrator.
func (s *server) findAny(r *http.Request, id auth.Identity) (postgres.AnyWorkspace, error) {
	return s.cfg.Store.AnyWorkspace(r.Context(), id.Caller, pathID(r))
}

// administer handles what an administrator does with a workspace, with a message for its
// owner.
func (s *server) administer(do string) handler {
	return mayTake(s, func(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.Administer) error {
		if in.Force && do != postgres.DoStop {
			return fieldError("force", "is for stop alone.")
		}
		return s.administered(w, r, id, postgres.Administration{Do: do, Message: in.Message, Force: in.Force})
	})
}

func (s *server) administered(w http.ResponseWriter, r *http.Request, id auth.Identity, do postgres.Administration) error {
	do.Message = strings.TrimSpace(do.Message)
	if err := postgres.CheckMessage("message", do.Message); err != nil {
		return err
	}
	ws, err := s.cfg.Store.Administer(r.Context(), id.Caller, pathID(r), do)
	return reply(w, http.StatusAccepted, s.adminView(ws), err)
}

func (s *server) deleteAnyWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	return s.administered(w, r, id, postgres.Administration{Do: postgres.DoDelete, Message: r.URL.Query().Get("message")})
}

func (s *server) patchAnyWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.AdminTimeouts) error {
	if err := firstError(
		checkTTL("standby_ttl_seconds", in.StandbyTTLSeconds.Value),
		checkTTL("archive_ttl_seconds", in.ArchiveTTLSeconds.Value),
	); err != nil {
		return err
	}
	return s.administered(w, r, id, postgres.Administration{
		Do: postgres.DoTimeouts, Message: in.Message,
		StandbyTTL: workspace.Optional[int](in.StandbyTTLSeconds), ArchiveTTL: workspace.Optional[int](in.ArchiveTTLSeconds),
	})
}

func (s *server) sizeAnyWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.AdminSize) error {
	if in.Size == "" {
		return fieldError("size", "is required.")
	}
	return s.administered(w, r, id, postgres.Administration{Do: postgres.DoSize, Size: workspace.SizeNamed(in.Size), Message: in.Message})
}

func (s *server) recoverAnyWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.AdminRecover) error {
	action, err := recoverAction(api.Recover{Action: in.Action, ArchiveOpID: in.ArchiveOpID})
	if err != nil {
		return err
	}
	return s.administered(w, r, id, postgres.Administration{Do: postgres.DoRecover, Recover: action, Archive: in.ArchiveOpID, Confirm: in.Confirm, Message: in.Message})
}

func (s *server) handOver(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.HandOver) error {
	h := postgres.HandOver{To: in.To, Message: strings.TrimSpace(in.Message)}
	if in.To == "" {
		return fieldError("to", "is required.")
	}
	if in.Name != "" {
		var err error
		if h.Name, err = checkName(in.Name); err != nil {
			return err
		}
	}
	if err := postgres.CheckMessage("message", h.Message); err != nil {
		return err
	}
	ws, err := s.cfg.Store.HandOver(r.Context(), id.Caller, pathID(r), h)
	return reply(w, http.StatusOK, s.adminView(ws), err)
}

func (s *server) withdrawHandOver(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Store.WithdrawHandOver(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusOK, s.adminView(ws), err)
}

// getHandOver returns the hand-over that the owner is asked to accept.
func (s *server) getHandOver(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	asked, err := s.cfg.Store.HandOverRequest(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusOK, asked, err)
}

func (s *server) answerHandOver(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.AnswerHandOver) error {
	if in.Accept == nil {
		return fieldError("accept", "is required.")
	}
	return replyNothing(w, s.cfg.Store.AnswerHandOver(r.Context(), id.Caller, pathID(r), *in.Accept))
}

func (s *server) listAnyArchives(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.findAny(r, id)
	if err != nil {
		return err
	}
	list, next, err := s.cfg.Store.AnyArchives(r.Context(), id.Caller, ws.ID, pageOf(r))
	if err != nil {
		return err
	}
	out := service.Archives(ws.Workspace, list)
	out.NextCursor = next
	return writeJSON(w, http.StatusOK, out)
}

// anyLogs sends the log of the workspace's container to an administrator.
func (s *server) anyLogs(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID := pathID(r)
	if err := s.asChange(r); err != nil { // the audit log gets an entry
		return err
	}
	if _, err := s.cfg.Store.ReadAnyLog(r.Context(), id.Caller, wsID); err != nil {
		return err
	}
	return s.sendLogs(w, r, id, wsID, s.administers(id.Caller, wsID))
}

func (s *server) anyUsage(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.findAny(r, id)
	if err != nil {
		return err
	}
	return s.sendUsage(w, r, id, ws.ID)
}

func (s *server) allUsage(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	return s.sendUsage(w, r, id, "")
}

// usageParams are the parameters of a report of use.
var usageParams = []string{"from", "through", "format"}

// maxUsageDays bounds a report.
const maxUsageDays = 400

func (s *server) sendUsage(w http.ResponseWriter, r *http.Request, id auth.Identity, ws workspace.ID) error {
	q := r.URL.Query()
	through := time.Now().UTC().Truncate(24 * time.Hour)
	from := through.AddDate(0, 0, 1-postgres.UsageDays)
	for name, day := range map[string]*time.Time{"from": &from, "through": &through} {
		if v := q.Get(name); v != "" {
			var err error
			if *day, err = time.Parse(time.DateOnly, v); err != nil {
				return fieldError(name, "is not a day like 2026-12-24.")
			}
		}
	}
	if from.After(through) || through.Sub(from) >= maxUsageDays*24*time.Hour {
		return fieldError("from", fmt.Sprintf("must be at most %d days before through.", maxUsageDays-1))
	}
	switch q.Get("format") {
	case "", "json":
		return s.sendUsageJSON(w, r, id, ws, from, through)
	case "csv":
		return s.sendUsageCSV(w, r, id, ws, from, through)
	}
	return fieldError("format", "must be json or csv.")
}

func usageDay(d postgres.UsageDay) api.UsageDay {
	return api.UsageDay{
		Day: d.Day.Format(time.DateOnly), WorkspaceID: string(d.WorkspaceID), Workspace: d.Name, OwnerID: d.OwnerID, Owner: d.Owner,
		RunningHours: hours(d.RunningSeconds), CPUHours: hours(d.CPUSeconds), MemoryGiBHours: gibHours(d.MemorySeconds),
		HomeBytes: d.HomeBytes, ArchivesBytes: d.ArchivesBytes,
	}
}

// sendUsageJSON sends an api.UsageReport as its days are read: it may have hundreds of thousands.
func (s *server) sendUsageJSON(w http.ResponseWriter, r *http.Request, id auth.Identity, ws workspace.ID, from, through time.Time) error {
	ctx, stop := s.cfg.Auth.Watch(r.Context(), id.Caller.Session)
	defer stop()
	defer inbound.Stream(w, r)()
	out := &download{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteWithin, contentType: "application/json"}
	b := bufio.NewWriterSize(out, 32<<10) // the first write begins the response
	head, err := json.Marshal(api.UsageReport{From: from.Format(time.DateOnly), Through: through.Format(time.DateOnly), Days: []api.UsageDay{}})
	if err != nil {
		return err
	}
	_, _ = b.Write(bytes.TrimSuffix(head, []byte("]}"))) // errors stay until Flush
	separator := ""
	err = s.cfg.Store.UsageOf(ctx, id.Caller, ws, from, through, func(d postgres.UsageDay) error {
		day, err := json.Marshal(usageDay(d))
		if err != nil {
			return err
		}
		_, _ = b.WriteString(separator)
		separator = ","
		_, err = b.Write(day)
		return err
	})
	if err == nil {
		_, _ = b.WriteString("]}\n")
		err = b.Flush()
	}
	return out.ended(err)
}

func (s *server) sendUsageCSV(w http.ResponseWriter, r *http.Request, id auth.Identity, ws workspace.ID, from, through time.Time) error {
	ctx, stop := s.cfg.Auth.Watch(r.Context(), id.Caller.Session)
	defer stop()
	defer inbound.Stream(w, r)()
	out := &download{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteWithin, contentType: "text/csv; charset=utf-8",
		name: "codehub-usage-" + from.Format(time.DateOnly) + "-" + through.Format(time.DateOnly) + ".csv"}
	c := csv.NewWriter(out)
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	rows := 0
	row := func(cells ...string) error {
		if err := c.Write(cells); err != nil {
			return err
		}
		if rows++; rows%1000 == 0 {
			c.Flush()
		}
		return c.Error()
	}
	err := s.cfg.Store.UsageOf(ctx, id.Caller, ws, from, through, func(d postgres.UsageDay) error {
		if rows == 0 {
			if err := row(usageColumns...); err != nil {
				return err
			}
		}
		u := usageDay(d)
		return row(u.Day, u.WorkspaceID, cell(u.Workspace), u.OwnerID, cell(u.Owner), number(u.RunningHours), number(u.CPUHours), number(u.MemoryGiBHours),
			strconv.FormatInt(u.HomeBytes, 10), strconv.FormatInt(u.ArchivesBytes, 10))
	})
	if err == nil && rows == 0 {
		err = row(usageColumns...)
	}
	if err == nil {
		c.Flush()
		err = c.Error()
	}
	return out.ended(err)
}

var usageColumns = []string{"day", "workspace_id", "workspace", "owner_id", "owner", "running_hours", "cpu_hours", "memory_gib_hours", "home_bytes", "archives_bytes"}

// cell keeps a spreadsheet from taking a name for a formula.
func cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}

// download is a response that is written as it is read. It delays its header, so that a failure
// before the first byte can still be answered with an error.
type download struct {
	w                 http.ResponseWriter
	rc                *http.ResponseController
	within            time.Duration
	contentType, name string // without a name browsers show it
	begun             bool
}

func (t *download) begin() {
	if t.begun {
		return
	}
	t.begun = true
	h := t.w.Header()
	h.Set("Content-Type", t.contentType)
	if t.name != "" {
		h.Set("Content-Disposition", attachment(t.name))
	}
	h.Set("X-Accel-Buffering", "no")
}

func (t *download) Write(b []byte) (int, error) {
	t.begin()
	if err := t.rc.SetWriteDeadline(time.Now().Add(t.within)); err != nil {
		return 0, err
	}
	n, err := t.w.Write(b)
	return n, errors.Join(err, t.rc.SetWriteDeadline(time.Time{}))
}

// ended is the error of the handler.
func (t *download) ended(err error) error {
	if err == nil {
		t.begin()
		return nil
	}
	if t.begun {
		return errors.Join(errTruncated, err)
	}
	return err
}

func parseAuditFilter(q url.Values) (f postgres.AuditFilter, err error) {
	f = postgres.AuditFilter{User: q.Get("user"), Action: q.Get("action"), Target: q.Get("target")}
	for name, v := range map[string]string{"user": f.User, "action": f.Action, "target": f.Target} {
		if !utf8.ValidString(v) || utf8.RuneCountInString(v) > maxQuery || strings.ContainsFunc(v, workspace.Unprintable) {
			return f, fieldError(name, "must be at most 255 characters without control characters.")
		}
	}
	if f.Since, err = timeParam(q, "since"); err != nil {
		return f, err
	}
	f.Until, err = timeParam(q, "until")
	return f, err
}

func (s *server) listAudit(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	f, err := parseAuditFilter(r.URL.Query())
	if err != nil {
		return err
	}
	f.Page = pageOf(r)
	list, next, err := s.cfg.Store.Audit(r.Context(), id.Caller, f)
	return reply(w, http.StatusOK, api.AuditLog{Entries: list, NextCursor: next}, err)
}

// exportAudit sends the entries as JSON lines, the oldest first.
func (s *server) exportAudit(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	if err := s.asChange(r); err != nil { // the audit log gets an entry
		return err
	}
	f, err := parseAuditFilter(r.URL.Query())
	if err != nil {
		return err
	}
	ctx, stop := s.cfg.Auth.Watch(r.Context(), id.Caller.Session)
	defer stop()
	defer inbound.Stream(w, r)()
	out := &download{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteWithin, contentType: "application/jsonl", name: "codehub-audit.jsonl"}
	lines := json.NewEncoder(out)
	begin := func(until time.Time) { w.Header().Set(api.ExportedUntil, until.UTC().Format(time.RFC3339Nano)) }
	return out.ended(s.cfg.Store.ExportAudit(ctx, id.Caller, f, begin, func(e postgres.AuditEntry) error { return lines.Encode(e) }))
}

func (s *server) getBanner(w http.ResponseWriter, r *http.Request, _ auth.Identity) error {
	b, err := s.cfg.Store.Banner(r.Context())
	return reply(w, http.StatusOK, b, err)
}

func (s *server) setBanner(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.SetBanner) error {
	b, err := s.cfg.Store.SetBanner(r.Context(), id.Caller, in.Message)
	return reply(w, http.StatusOK, b, err)
}

func (s *server) listNotices(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Store.Notices(r.Context(), id.Caller)
	return reply(w, http.StatusOK, api.NoticeList{Notices: each(list, func(n postgres.Notice) api.Notice {
		return api.Notice{ID: n.ID, Kind: n.Kind, WorkspaceID: string(n.WorkspaceID), WorkspaceName: n.WorkspaceName, By: n.By, Other: n.Other, Message: n.Message, CreatedAt: n.CreatedAt}
	})}, err)
}

func (s *server) deleteAccount(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	q := r.URL.Query()
	user := r.PathValue("id")
	err := s.cfg.Store.DeleteAccount(r.Context(), id.Caller, user, postgres.Removal{Workspaces: q.Get("workspaces"), To: q.Get("to")})
	if err != nil {
		return err
	}
	s.cfg.Auth.Invalidate(user, "")
	w.WriteHeader(http.StatusNoContent)
	return nil
}
