package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// adminCmd has the commands on workspaces of all users.
type adminCmd struct {
	List     adminListCmd     `cmd:"" aliases:"ls" help:"List the workspaces of all users."`
	Show     adminShowCmd     `cmd:"" help:"Show one workspace."`
	Stop     adminStopCmd     `cmd:"" help:"Stop a workspace."`
	Archive  adminArchiveCmd  `cmd:"" help:"Archive a workspace."`
	Cancel   adminCancelCmd   `cmd:"" help:"Cancel the running operation."`
	Recover  adminRecoverCmd  `cmd:"" help:"Recover a workspace from an error."`
	Archives adminArchivesCmd `cmd:"" help:"List a workspace's archives."`
	Backups  adminBackupsCmd  `cmd:"" help:"List a workspace's backups."`
	BackUp   adminBackUpCmd   `cmd:"" name:"back-up" help:"Back up a workspace's home now."`
	Restore  adminRestoreCmd  `cmd:"" help:"Replace a home by one of its backups."`
	Delete   adminDeleteCmd   `cmd:"" aliases:"rm" help:"Delete a workspace."`
	Undelete adminUndeleteCmd `cmd:"" help:"Undo a deletion."`
	Timeouts adminTimeoutsCmd `cmd:"" help:"Change a workspace's idle timeouts."`
	Size     adminSizeCmd     `cmd:"" help:"Change a workspace's size."`
	Message  adminMessageCmd  `cmd:"" help:"Send a message to the owner."`
	HandOver adminHandOverCmd `cmd:"" name:"hand-over" help:"Give a workspace to another user."`
	Logs     adminLogsCmd     `cmd:"" help:"Print a workspace's container log."`
	Usage    adminUsageCmd    `cmd:"" help:"Report what workspaces used, by day."`
}

// Help describes how workspaces are named.
func (adminCmd) Help() string {
	return `For administrators. WORKSPACE is an id, OWNER/NAME, or a name that only one user has. Owners get a notice of every change; the audit log has it, too.`
}

type adminListCmd struct {
	serverFlags
	terminal.Format
	Query   string `short:"q" name:"query" help:"List only workspaces whose name, owner, image or id contains this."`
	State   string `help:"List only these states, separated by commas: running, stopped, archived, error and others."`
	Owner   string `help:"List only workspaces of this user."`
	Image   string `help:"List only workspaces with this image."`
	Unused  span   `placeholder:"TIME" help:"List only workspaces without activity for this long, such as 30d."`
	Deleted bool   `help:"List deleted workspaces."`
	Sort    string `default:"last_use" enum:"name,owner,state,image,bytes,last_use,created" help:"Order: name, owner, state, image, bytes, last_use or created."`
	Reverse bool   `short:"r" help:"Reverse the order."`
	Limit   int    `short:"n" default:"50" help:"Workspaces to list; 0 lists all."`
}

func (l adminListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	f := client.AllFilter{Query: l.Query, State: l.State, Owner: l.Owner, Image: l.Image, Deleted: l.Deleted, Sort: l.Sort, Descending: l.Reverse, Most: max(0, l.Limit)}
	if l.Unused > 0 {
		f.UnusedSince = time.Now().Add(-time.Duration(l.Unused))
	}
	list, err := c.AllWorkspaces(ctx, f)
	if err != nil {
		return err
	}
	return l.Print(k.Stdout, list, allWorkspacesTable(list, time.Now()))
}

func allWorkspacesTable(list api.AdminWorkspaceList, now time.Time) string {
	rows := [][]string{{"NAME", "OWNER", "STATE", "STORAGE", "LAST USE", "CPU", "MEMORY", "IMAGE", "ID"}}
	for _, w := range list.Workspaces {
		used := w.Workspace.CreatedAt
		if at := w.Workspace.LastAccessAt; at != nil {
			used = *at
		}
		rows = append(rows, []string{w.Workspace.Name, w.Owner, state(w.Workspace), sizeOf(w), age(now.Sub(used)) + " ago",
			fmt.Sprintf("%.1f h", w.Used.CPUHours), fmt.Sprintf("%.1f GiB h", w.Used.MemoryGiBHours), w.Workspace.ImageRef, w.Workspace.ID})
	}
	return terminal.Table(rows) + fmt.Sprintf("%d of %d workspaces, %s in all\n", len(list.Workspaces), list.Total, terminal.Size(list.Bytes))
}

// sizeOf is the size of a home and its archives.
func sizeOf(w api.AdminWorkspace) string {
	if w.HomeBytes == nil && w.ArchivesBytes == nil {
		return "unknown"
	}
	var n int64
	for _, b := range []*int64{w.HomeBytes, w.ArchivesBytes} {
		if b != nil {
			n += *b
		}
	}
	return terminal.Size(n)
}

// onAny is embedded in the commands on one workspace of any user.
type onAny struct {
	serverFlags
	terminal.Format
	Workspace string `arg:"" help:"An id, OWNER/NAME, or a name."`
}

// telling adds a message for the owner.
type telling struct {
	onAny
	Message string `short:"m" help:"A message for the owner."`
}

// resolveAny finds a workspace of any user.
func resolveAny(ctx context.Context, c *client.Client, ref string, deleted bool) (api.AdminWorkspace, error) {
	if len(ref) == 36 {
		w, err := c.AnyWorkspace(ctx, strings.ToLower(ref))
		if client.CodeOf(err) != "not_found" {
			return w, err
		}
	}
	f := client.AllFilter{Query: ref, Deleted: deleted}
	if owner, name, ok := strings.Cut(ref, "/"); ok {
		f.Owner, f.Query = owner, name
	}
	list, err := c.AllWorkspaces(ctx, f)
	if err != nil {
		return api.AdminWorkspace{}, err
	}
	var found []api.AdminWorkspace
	for _, w := range list.Workspaces {
		if w.Workspace.Name == f.Query {
			found = append(found, w)
		}
	}
	switch len(found) {
	case 0:
		return api.AdminWorkspace{}, terminal.NotFound("there is no %sworkspace %q", map[bool]string{true: "deleted "}[deleted], ref)
	case 1:
		return found[0], nil
	}
	several := make([]string, len(found))
	for i, w := range found {
		several[i] = fmt.Sprintf("%s (%s/%s", w.Workspace.ID, terminal.Plain(w.Owner), terminal.Plain(w.Workspace.Name))
		if at := w.Workspace.DeletedAt; at != nil {
			several[i] += ", deleted " + terminal.Time(*at)
		}
		several[i] += ")"
	}
	return api.AdminWorkspace{}, fmt.Errorf("several workspaces are called %q; give the id of one of:\n  %s", ref, strings.Join(several, "\n  "))
}

func (o onAny) run(ctx context.Context, k *kong.Context, deleted bool, do func(c *client.Client, id string) (api.AdminWorkspace, string, error)) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	w, err := resolveAny(ctx, c, o.Workspace, deleted)
	if err != nil {
		return err
	}
	out, text, err := do(c, w.Workspace.ID)
	if err != nil {
		return err
	}
	return o.Print(k.Stdout, out, text)
}

// anyOutcome formats a workspace of any user after a request.
func anyOutcome(w api.AdminWorkspace, err error) (api.AdminWorkspace, string, error) {
	if err != nil {
		return w, "", err
	}
	_, text, err := outcome(w.Workspace, nil)
	return w, terminal.Plain(w.Owner) + "/" + text, err
}

type adminShowCmd struct{ onAny }

func (s adminShowCmd) Run(ctx context.Context, k *kong.Context) error {
	return s.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		w, err := c.AnyWorkspace(ctx, id)
		if err != nil {
			return w, "", err
		}
		owner := w.Owner
		if w.OwnerDisabled {
			owner += " (disabled)"
		}
		var asked [][]string
		if r := w.HandOver; r != nil {
			text := "to " + r.To + ", requested by " + r.By + " " + terminal.Time(r.RequestedAt)
			if r.DeclinedAt != nil {
				text += ", declined " + terminal.Time(*r.DeclinedAt)
			}
			asked = [][]string{{"Hand-over:", text}}
		}
		return w, terminal.Table(append(asked, [][]string{
			{"Owner:", owner}, {"Storage:", sizeOf(w)},
			{"Used:", fmt.Sprintf("in %d days %.1f hours running, %.1f processor hours, %.1f GiB hours of memory", w.Used.Days, w.Used.RunningHours, w.Used.CPUHours, w.Used.MemoryGiBHours)},
		}...)) + workspaceDetails(w.Workspace, nil, 0, time.Now()), nil
	})
}

// does runs one of the actions that need nothing but a message.
func (t telling) does(ctx context.Context, k *kong.Context, action string, force bool) error {
	return t.run(ctx, k, action == "undelete", func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		return anyOutcome(c.Administer(ctx, id, action, api.Administer{Message: t.Message, Force: force}))
	})
}

type adminStopCmd struct {
	telling
	Force bool `short:"f" help:"Remove the container at once, during any operation."`
}

func (a adminStopCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.does(ctx, k, "stop", a.Force)
}

type adminArchiveCmd struct{ telling }

func (a adminArchiveCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.does(ctx, k, "archive", false)
}

type adminCancelCmd struct{ telling }

func (a adminCancelCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.does(ctx, k, "cancel", false)
}

type adminUndeleteCmd struct{ telling }

func (a adminUndeleteCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.does(ctx, k, "undelete", false)
}

type adminMessageCmd struct {
	onAny
	Text string `arg:"" help:"The message."`
}

func (a adminMessageCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		w, err := c.Administer(ctx, id, "message", api.Administer{Message: a.Text})
		return w, "The message is sent to " + terminal.Plain(w.Owner) + ".", err
	})
}

type adminDeleteCmd struct{ telling }

func (a adminDeleteCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		return anyOutcome(c.AdminDelete(ctx, id, a.Message))
	})
}

type adminRecoverCmd struct {
	telling
	StartEmpty bool   `xor:"instead" help:"Give up lost data; start with an empty home."`
	FromID     string `name:"archive" xor:"instead" placeholder:"ARCHIVE" help:"Replace lost data with this archive."`
	SetAside   bool   `xor:"instead" help:"Set aside the volume that blocks the home."`
	Confirm    string `placeholder:"NAME" help:"With --start-empty and --archive: the workspace's name."`
}

func (a adminRecoverCmd) Run(ctx context.Context, k *kong.Context) error {
	in := api.AdminRecover{Confirm: a.Confirm, Message: a.Message}
	switch {
	case a.StartEmpty:
		in.Action = api.RecoverEmpty
	case a.SetAside:
		in.Action = api.RecoverSetAside
	case a.FromID != "":
		in.Action, in.ArchiveOpID = api.RecoverArchive, a.FromID
	}
	return a.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		return anyOutcome(c.AdminRecover(ctx, id, in))
	})
}

type adminArchivesCmd struct{ onAny }

func (a adminArchivesCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	w, err := resolveAny(ctx, c, a.Workspace, false)
	if err != nil {
		return err
	}
	list, err := c.AdminArchives(ctx, w.Workspace.ID)
	if err != nil {
		return err
	}
	return a.Print(k.Stdout, list, archiveTable(list, w.Workspace.Phase != "ARCHIVED"))
}

type adminBackupsCmd struct{ onAny }

func (a adminBackupsCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	w, err := resolveAny(ctx, c, a.Workspace, false)
	if err != nil {
		return err
	}
	list, err := c.AdminBackups(ctx, w.Workspace.ID)
	if err != nil {
		return err
	}
	return a.Print(k.Stdout, list, backupTable(list))
}

type adminBackUpCmd struct {
	onAny
	Note string `short:"m" name:"note" placeholder:"NOTE" help:"What the backup is for."`
}

// Help says who can read the backup.
func (adminBackUpCmd) Help() string {
	return `The command does not wait for the backup. Only the owner can read it; a limit of the owner does not apply.`
}

func (a adminBackUpCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	w, err := resolveAny(ctx, c, a.Workspace, false)
	if err != nil {
		return err
	}
	b, err := c.AdminRequestBackup(ctx, w.Workspace.ID, a.Note)
	if err != nil {
		return err
	}
	return a.Print(k.Stdout, b, b.ID)
}

type adminRestoreCmd struct {
	onAny
	From  string `name:"from" required:"" placeholder:"BACKUP" help:"The backup: its id, its note, or a time like 2h or 2026-12-24 18:30."`
	Start bool   `short:"s" help:"Also start the workspace."`
	Yes   bool   `short:"y" help:"Skip the confirmation."`
}

// Help describes what happens to the present home.
func (adminRestoreCmd) Help() string {
	return `A running workspace stops, its home is archived and then replaced by that of the backup, and it starts again. The owner gets a notice; the files stay unread.`
}

func (a adminRestoreCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		list, err := c.AdminBackups(ctx, id)
		if err != nil {
			return api.AdminWorkspace{}, "", err
		}
		from, err := chooseBackup(list, a.From, time.Now())
		if err != nil {
			return api.AdminWorkspace{}, "", err
		}
		if err := confirmRestore(k, a.Workspace, from, a.Yes); err != nil {
			return api.AdminWorkspace{}, "", err
		}
		w, err := c.AdminRestoreBackup(ctx, id, api.RestoreBackup{Backup: from.ID, Start: a.Start})
		return w, fmt.Sprintf("%s goes back to %s; the present home is archived first", terminal.Plain(w.Owner+"/"+w.Workspace.Name), terminal.Time(backupTime(from))), err
	})
}

type adminTimeoutsCmd struct {
	telling
	ttlFlags
}

func (a adminTimeoutsCmd) Run(ctx context.Context, k *kong.Context) error {
	if !a.StandbyTTL.given && !a.ArchiveTTL.given {
		return errNothingToSet
	}
	return a.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		w, err := c.AdminTimeouts(ctx, id, api.AdminTimeouts{StandbyTTLSeconds: a.StandbyTTL.change(), ArchiveTTLSeconds: a.ArchiveTTL.change(), Message: a.Message})
		return w, "The idle timeouts of " + terminal.Plain(w.Owner+"/"+w.Workspace.Name) + " are set.", err
	})
}

// Help describes the sizes.
func (adminSizeCmd) Help() string {
	return `codehub sizes lists the sizes; default is the default one. The new size takes effect at the next start.`
}

type adminSizeCmd struct {
	telling
	Size string `arg:"" help:"The name of a size."`
}

func (a adminSizeCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		w, err := c.AdminSize(ctx, id, api.AdminSize{Size: a.Size, Message: a.Message})
		return w, "The size of " + terminal.Plain(w.Owner+"/"+w.Workspace.Name) + " is set. It takes effect at the next start.", err
	})
}

type adminHandOverCmd struct {
	telling
	To       string `arg:"" optional:"" name:"user" help:"The new owner's name or id."`
	Name     string `placeholder:"NAME" help:"The workspace's new name, if it is taken there."`
	Withdraw bool   `help:"Withdraw a hand-over that the owner has not accepted."`
}

// Help says when the owner is asked.
func (adminHandOverCmd) Help() string {
	return `An owner who can log in is asked to accept the hand-over. The workspace of a disabled or suspended owner is handed over at once.`
}

func (a adminHandOverCmd) Run(ctx context.Context, k *kong.Context) error {
	if (a.To == "") != a.Withdraw {
		return errors.New("give the new owner, or --withdraw")
	}
	return a.run(ctx, k, false, func(c *client.Client, id string) (api.AdminWorkspace, string, error) {
		if a.Withdraw {
			w, err := c.WithdrawHandOver(ctx, id)
			return w, "The hand-over of " + terminal.Plain(w.Owner+"/"+w.Workspace.Name) + " is withdrawn.", err
		}
		to, err := findUser(ctx, c, a.To)
		if err != nil {
			return api.AdminWorkspace{}, "", err
		}
		w, err := c.HandOver(ctx, id, api.HandOver{To: to, Name: a.Name, Message: a.Message})
		if err == nil && w.HandOver != nil {
			return w, terminal.Plain(w.Owner + " must accept the hand-over of " + w.Owner + "/" + w.Workspace.Name + " to " + w.HandOver.To + "."), nil
		}
		return w, "The workspace is now " + terminal.Plain(w.Owner+"/"+w.Workspace.Name) + ".", err
	})
}

type adminLogsCmd struct {
	serverFlags
	Workspace string `arg:"" help:"An id, OWNER/NAME, or a name."`
	Follow    bool   `short:"f" help:"Follow new output."`
	Tail      int    `short:"n" default:"1000" help:"Newest lines to print; 0 prints all."`
}

func (l adminLogsCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	w, err := resolveAny(ctx, c, l.Workspace, false)
	if err != nil {
		return err
	}
	return copyBody(ctx, terminal.Foreign(k.Stdout), l.Follow)(c.AdminLogs(ctx, w.Workspace.ID, l.Tail, l.Follow))
}

type adminUsageCmd struct {
	serverFlags
	Workspace string `arg:"" optional:"" help:"An id, OWNER/NAME, or a name (default: all workspaces)."`
	From      string `placeholder:"DAY" help:"First day, like 2026-12-01 (default: 29 days before the last)."`
	Through   string `placeholder:"DAY" help:"Last day (default: today)."`
	JSON      bool   `name:"json" help:"Print JSON instead of CSV."`
}

func (u adminUsageCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	id, format := "", "csv"
	if u.Workspace != "" {
		w, err := resolveAny(ctx, c, u.Workspace, false)
		if err != nil {
			return err
		}
		id = w.Workspace.ID
	}
	if u.JSON {
		format = "json"
	}
	return copyBody(ctx, terminal.Foreign(k.Stdout), false)(c.UsageReport(ctx, id, u.From, u.Through, format))
}

type auditCmd struct {
	serverFlags
	terminal.Format
	User   string `help:"Print only what this user did: a name, system, or an id."`
	Action string `help:"Print only this action; workspace. prints all of workspaces."`
	Target string `help:"Print only what was done to this id."`
	Since  since  `placeholder:"TIME" help:"Print only entries of the last time, such as 24h, or since a time like 2026-12-24T18:30:00Z."`
	Limit  int    `short:"n" default:"50" help:"Entries to print, the newest."`
	Export bool   `help:"Print all entries as JSON lines, the oldest first."`
}

// Help describes the audit log.
func (auditCmd) Help() string {
	return `For administrators: who did what to which workspace, user or token, when, and from where.`
}

func (a auditCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	f := client.AuditFilter{User: a.User, Action: a.Action, Target: a.Target, Since: a.Since.at(time.Now())}
	if a.Export {
		body, until, err := c.ExportAudit(ctx, f)
		out := &lastEntry{out: terminal.Foreign(k.Stdout)}
		err = copyBody(ctx, out, false)(body, err)
		if at := out.at(); err != nil && at != "" {
			return fmt.Errorf("%w. Remove the last line if it is cut off, and continue with --since %s, which repeats the entries of that moment", err, at)
		}
		if err != nil || until.IsZero() {
			return err
		}
		_, err = fmt.Fprintf(k.Stderr, "Continue with --since %s.\n", until.UTC().Format(time.RFC3339Nano))
		return err
	}
	list, err := c.Audit(ctx, f, max(1, a.Limit))
	if err != nil {
		return err
	}
	return a.Print(k.Stdout, list, auditTable(list))
}

func auditTable(list []api.AuditEntry) string {
	rows := [][]string{{"TIME", "USER", "ADDRESS", "ACTION", "TARGET", "DETAILS"}}
	for _, e := range list {
		target := e.TargetName
		if target == "" {
			target = e.Target
		}
		rows = append(rows, []string{terminal.Time(e.At), e.Username, e.Address, e.Action, target, detailWords(e.Details)})
	}
	return terminal.Table(rows)
}

// detailWords lists the details by name.
func detailWords(details map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(details)) {
		v, ok := details[name].(string)
		if !ok {
			b, _ := json.Marshal(details[name]) // it was decoded from JSON
			v = string(b)
		}
		parts = append(parts, name+"="+v)
	}
	return strings.Join(parts, " ")
}

type bannerCmd struct {
	serverFlags
	terminal.Format
	Text  string `arg:"" optional:"" help:"The new text (administrators). Without it, the current one is printed."`
	Clear bool   `help:"Remove the banner (administrators)."`
}

func (b bannerCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	var banner api.Banner
	var err error
	switch {
	case b.Clear:
		banner, err = c.SetBanner(ctx, "")
	case b.Text != "":
		banner, err = c.SetBanner(ctx, b.Text)
	default:
		banner, err = c.GetBanner(ctx)
	}
	if err != nil {
		return err
	}
	text := banner.Message
	if text == "" {
		text = "There is no banner."
	}
	return b.Print(k.Stdout, banner, terminal.Plain(text))
}

type noticesCmd struct {
	serverFlags
	terminal.Format
	Dismiss bool `help:"Remove the notices after printing them."`
}

func (n noticesCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Notices(ctx)
	if err != nil {
		return err
	}
	if err := n.Print(k.Stdout, list, noticeTable(list)); err != nil || !n.Dismiss {
		return err
	}
	for _, notice := range list {
		if err := c.DismissNotice(ctx, notice.ID); err != nil && client.CodeOf(err) != "not_found" {
			return err
		}
	}
	return nil
}

func noticeTable(list []api.Notice) string {
	if len(list) == 0 {
		return "There are no notices."
	}
	rows := [][]string{{"TIME", "NOTICE", "MESSAGE"}}
	for _, n := range list {
		if n.Kind == "hand_over_request" {
			n.Message = strings.TrimSpace(n.Message + " (answer with codehub hand-over)")
		}
		rows = append(rows, []string{terminal.Time(n.CreatedAt), noticeWords(n), n.Message})
	}
	return terminal.Table(rows)
}

// noticeWords is the dashboard's text of a notice.
func noticeWords(n api.Notice) string {
	text := words("told.", n.Kind)
	if text == n.Kind {
		return text
	}
	return fmt.Sprintf(text, n.By, n.WorkspaceName, n.Other)
}

type usersDeleteCmd struct {
	serverFlags
	User             string `arg:"" help:"A user's name or id."`
	DeleteWorkspaces bool   `xor:"workspaces" help:"Delete the user's workspaces."`
	HandOver         string `xor:"workspaces" placeholder:"USER" help:"Hand over the user's workspaces to this user."`
}

func (u usersDeleteCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	id, err := findUser(ctx, c, u.User)
	if err != nil {
		return err
	}
	workspaces, to := "", ""
	switch {
	case u.DeleteWorkspaces:
		workspaces = "delete"
	case u.HandOver != "":
		workspaces = "hand_over"
		if to, err = findUser(ctx, c, u.HandOver); err != nil {
			return err
		}
	}
	if err := c.DeleteAccount(ctx, id, workspaces, to); err != nil {
		return err
	}
	_, err = fmt.Fprintf(k.Stdout, "%s is deleted.\n", terminal.Plain(u.User))
	return err
}

type usersQuotaCmd struct {
	onUser
	Workspaces limit    `name:"workspaces" placeholder:"N" help:"Workspaces; 0: unlimited, default: no own limit."`
	Size       sizeFlag `name:"size" placeholder:"SIZE" help:"Size of homes and archives, like 20g; 0: unlimited, default: no own limit."`
}

func (u usersQuotaCmd) Run(ctx context.Context, k *kong.Context) error {
	in := api.PatchAccount{
		MaxWorkspaces: api.Nullable[int]{Set: u.Workspaces.given, Value: u.Workspaces.n},
		MaxBytes:      api.Nullable[int64]{Set: u.Size.given, Value: u.Size.n},
	}
	if in == (api.PatchAccount{}) {
		return errNothingToSet
	}
	return u.change(ctx, k, in, "The limits of %s are set.")
}
