package service

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
)

const base = "https://hub.example.com/"

// Every field of what the API shows is filled from a workspace that has
// everything, but for when it stops by itself, which one that is deleted does
// not, the backup in place of its archive, and the values of its environment variables.
func TestViewIsComplete(t *testing.T) {
	t.Parallel()
	at := func(h int) time.Time { return time.Date(2026, 1, 2, h, 0, 0, 0, time.FixedZone("KST", 9*3600)) }
	p := func(h int) *time.Time { t := at(h); return &t }
	n := func(i int) *int { return &i }
	w := workspace.Workspace{
		ID: "id", OwnerID: "ann", Name: "name", Description: "description", Memo: "memo", ImageRef: "image", RunningImage: "running", PreviousImage: "previous",
		AwakeWhileWorking: true, HomeBytes: new(int64(5)), HomeLimit: 8, Size: "small", RunningSize: "large",
		ImagePin: &workspace.ImagePin{Ref: "image", ID: "image-id", Digest: "digest", Note: workspace.ImageReplaced}, ImageNewer: "newer",
		Conditions: workspace.Conditions{workspace.VolumeReady: {Status: "True", Reason: "Ready", Message: "m", LastTransitionTime: at(1)}, workspace.ContainerReady: {Status: "True", Reason: "Ready"}},
		Phase:      workspace.PhaseDeleting, PhaseChangedAt: at(2), Operation: workspace.OpDeleting,
		ArchiveKey: "key", ArchiveSize: 9, ErrorReason: workspace.ErrTimeout, ErrorMessage: "message", ErrorCount: 3, StopReason: "idle",
		Progress:     &workspace.Progress{Step: "packing", Detail: "why", Done: 1, Total: 2, Entries: 3, EntriesTotal: 4, Rate: 5, SecondsLeft: 6, Steps: []workspace.ProgressStep{{Step: "packing", BeganAt: at(1), Done: 7}}},
		DesiredState: workspace.DesiredStandby, DesiredCause: "idle", NextDesired: workspace.DesiredRunning, DeletedAt: p(3), LastAccessAt: p(4), LastAccess: "open",
		GraceBegan: p(9), ForceStopRequestedAt: p(10),
		Env: map[string]string{"A": "b"}, TimeZone: "Asia/Seoul", Project: &workspace.Project{Scripts: &workspace.Scripts{Create: "make", Start: "run", Timeout: 3}, Devcontainer: &workspace.Devcontainer{File: "project/api/.devcontainer.json"}},
		Template:     &workspace.TemplateUse{Name: "go", Version: "2", Parameters: map[string]string{"a": "b"}, Previous: &workspace.TemplateUse{Version: "1"}},
		KeepAwakeTil: p(5), StandbyTTL: n(0), ArchiveTTL: n(7), BackupInterval: n(600), BackupKeep: "7d", RestoreFrom: &workspace.Archive{OpID: "backup"}, CreatedAt: at(6), UpdatedAt: at(7),
	}
	v := Server{URL: base, Grace: time.Hour, Sizes: workspace.Sizes{Offered: []workspace.Size{{Name: "small"}}}, TemplateUpdate: func(workspace.Workspace) bool { return true }}.View(w)
	for i := range reflect.TypeFor[api.Workspace]().NumField() {
		if f := reflect.TypeFor[api.Workspace]().Field(i).Name; f != "StopsAt" && f != "RestoredFrom" && f != "ImageUpdateRequested" && f != "Env" && reflect.ValueOf(v).Field(i).IsZero() {
			t.Errorf("%s is empty", f)
		}
	}
	if *v.Scripts != (api.Scripts{Create: "make", Start: "run", TimeoutSeconds: 3}) {
		t.Errorf("%+v", v.Scripts)
	}
	if v.URL != "https://hub.example.com/w/id/" || !v.PurgedAt.Equal(at(10)) || *v.PendingRequest != "force_stop" || v.CreatedAt.Location() != time.UTC || v.DeletedAt.Location() != time.UTC ||
		!cmp.Equal(*v.Template, api.WorkspaceTemplate{Name: "go", Version: "2", PreviousVersion: new("1"), UpdateAvailable: true}) ||
		v.Conditions["storage.volume_ready"].Reason != "Ready" || *v.StandbyTTLSeconds != 0 || *v.ArchiveSize != 9 ||
		!cmp.Equal(*v.Progress, api.Progress{Step: "packing", Detail: "why", Done: 1, Total: 2, Entries: 3, EntriesTotal: 4, Rate: 5, SecondsLeft: 6, Steps: []api.ProgressStep{{Step: "packing", BeganAt: at(1).UTC(), Done: 7}}}) {
		t.Errorf("%+v", v)
	}
}

// The home of an archived workspace may come from a backup, whose manifest is no archive.
func TestViewOfRestoredHome(t *testing.T) {
	t.Parallel()
	const id = "0190a5d4-0000-7000-8000-000000000001"
	v := Server{URL: base}.View(workspace.Workspace{ArchiveKey: "i/w/backups/20260101T000000Z-" + id + ".manifest.zst", ArchiveSize: 9})
	if v.RestoredFrom == nil || *v.RestoredFrom != id || v.ArchiveSize != nil {
		t.Errorf("%+v", v)
	}
}

// A deletion that cannot be undone has no time until which it can.
func TestViewOfDeletion(t *testing.T) {
	t.Parallel()
	w := workspace.Workspace{Phase: workspace.PhaseError, ErrorReason: workspace.ErrImagePullFailed, DeletedAt: new(time.Now())}
	if v := (Server{Grace: time.Hour}).View(w); v.PurgedAt != nil {
		t.Errorf("without a home it can be undone until %v", v.PurgedAt)
	}
	w.ArchiveKey = "key"
	if v := (Server{Grace: time.Hour}).View(w); v.PurgedAt == nil {
		t.Error("with an archive it cannot be undone")
	}
}

// An update that was requested is no longer available, and a pin of another reference says
// nothing of this one.
func TestViewOfImage(t *testing.T) {
	t.Parallel()
	w := workspace.Workspace{ImageRef: "a", ImagePin: &workspace.ImagePin{Ref: "a", ID: "id"}, ImageNewer: "newer", ImageGeneration: 1, ImagePull: true}
	if v := (Server{}).View(w); !v.ImageUpdateRequested || v.ImageUpdateAvailable || v.ImageID == nil || v.ImageDigest != nil {
		t.Errorf("%+v", v)
	}
	w.ImageRef, w.ImagePull = "b", false
	if v := (Server{}).View(w); v.ImageUpdateRequested || v.ImageUpdateAvailable || v.ImageID != nil {
		t.Errorf("%+v", v)
	}
}

// What a workspace does not have is null, not empty. A list is empty.
func TestViewOfNothing(t *testing.T) {
	t.Parallel()
	v := Server{URL: base, Grace: time.Hour}.View(workspace.Workspace{})
	want := api.Workspace{State: "pending", Size: "default", URL: "https://hub.example.com/w//", Conditions: map[string]api.Condition{}, Repositories: []api.Repository{}, Extensions: []string{}, Ports: []api.ProjectPort{}, RequiredSecrets: []string{}}
	if d := cmp.Diff(want, v); d != "" {
		t.Error(d)
	}
}

// When a workspace stops by itself, or is archived, is shown in UTC, by the
// server's TTLs or its own, and null where nothing is to come.
func TestStopsAt(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.FixedZone("KST", 9*3600))
	never := 0
	server := Server{TTL: workspace.TTL{Standby: time.Hour, Archive: 2 * time.Hour}}
	running := workspace.Workspace{Phase: workspace.PhaseRunning, DesiredState: workspace.DesiredRunning, Operation: workspace.OpNone, PhaseChangedAt: at, Unwatched: time.Minute}
	standby := running
	standby.Phase, standby.DesiredState, standby.StandbyTTL = workspace.PhaseStandby, workspace.DesiredStandby, &never
	if got := server.View(running).StopsAt; got == nil || !got.Equal(at.Add(61*time.Minute)) || got.Location() != time.UTC {
		t.Errorf("a running one: %v", got)
	}
	if got := server.View(standby).StopsAt; got == nil || !got.Equal(at.Add(121*time.Minute)) {
		t.Errorf("a stopped one: %v", got)
	}
	running.StandbyTTL = &never
	if got := server.View(running).StopsAt; got != nil {
		t.Errorf("never: %v", got)
	}
}

// Generations come newest first, and the one that the workspace's archive_key
// names is the current one.
func TestArchives(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.FixedZone("KST", 9*3600))
	w := workspace.Workspace{ArchiveKey: "in/ws/b/home.tar.zst"}
	got := Archives(w, []workspace.Archive{
		{Key: "in/ws/a/home.tar.zst", OpID: "a", Digest: "aa", Size: 1, Entries: 2, CreatedAt: at, Found: true},
		{Key: "in/ws/b/home.tar.zst", OpID: "b", Digest: "bb", Size: 3, Entries: 4, CreatedAt: at.Add(time.Hour)},
	})
	want := api.ArchiveList{Archives: []api.Archive{
		{OpID: "b", Digest: "bb", Size: 3, Entries: 4, CreatedAt: at.Add(time.Hour).UTC(), Current: true},
		{OpID: "a", Digest: "aa", Size: 1, Entries: 2, CreatedAt: at.UTC(), Found: true},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if none := Archives(w, nil); none.Archives == nil {
		t.Error("none is null")
	}
}

// A request changes each of the texts, and a move takes along what an owner can edit.
func TestEditsAreComplete(t *testing.T) {
	t.Parallel()
	var in api.UpdateWorkspace
	record := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[api.MoveRecord]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		record[name] = true
	}
	stays := []string{"desired_state", "queue", "queue_at_limit", "free_space", "keep_awake_until", // requests for the present
		"backup_interval_seconds", "backup_keep"} // of backups, which no move takes along
	for _, f := range reflect.VisibleFields(reflect.TypeFor[api.UpdateWorkspace]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !record[name] && !slices.Contains(stays, name) {
			t.Errorf("a move does not take %s along", name)
		}
		if slices.ContainsFunc(workspace.Texts, func(d workspace.Text) bool { return d.Name == name }) {
			reflect.ValueOf(&in).Elem().FieldByIndex(f.Index).Set(reflect.ValueOf(&name))
		}
	}
	edit := Edit(in)
	w := workspace.Workspace{}
	edit.Apply(&w)
	moved, err := json.Marshal(MoveRecord(w))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range workspace.Texts {
		if got := *d.New(&edit); got == nil || *got != d.Name {
			t.Errorf("a request does not change %s", d.Name)
		}
		if !strings.Contains(string(moved), fmt.Sprintf(`"%s":"%s"`, d.Name, d.Name)) {
			t.Errorf("a move does not take %s along: %s", d.Name, moved)
		}
	}
}

// The repositories of a request are those of the workspace, with all their fields.
func TestViewOfRepositories(t *testing.T) {
	t.Parallel()
	list := []api.Repository{{URL: "https://git.example/x/y", Branch: "b", Path: "p", Depth: 3, Submodules: true}, {URL: "git@git.example:z"}}
	v := (Server{}).View(workspace.Workspace{Project: Project(list)})
	if d := cmp.Diff(list, v.Repositories); d != "" {
		t.Error(d)
	}
	if Project(nil) != nil {
		t.Error("a request without repositories makes a project")
	}
}
