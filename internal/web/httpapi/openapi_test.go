package httpapi

import (
	"encoding/json"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
)

type document struct {
	Paths      map[string]map[string]json.RawMessage
	Components struct {
		Schemas map[string]schema
	}
}

type operation struct {
	OperationID string
	Security    *[]any
	Parameters  []struct{ Name, In string }
	RequestBody json.RawMessage
}

type schema struct {
	Type                 any
	Format               string
	Enum                 []any
	Ref                  string `json:"$ref"`
	OneOf                []schema
	Items                *schema
	Properties           map[string]schema
	Required             []string
	AdditionalProperties any
}

func readDocument(t *testing.T) document {
	t.Helper()
	var d document
	if err := json.Unmarshal(api.OpenAPI, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func testServer() *server {
	return &server{base: "http://codehub.test", origins: CrossOrigin(&url.URL{})}
}

// The document has exactly the routes, with their parameters and whether they are open.
func TestDocumentMatchesRoutes(t *testing.T) {
	t.Parallel()
	type call struct {
		Open  bool
		Query []string
	}
	want, got := map[string]call{}, map[string]call{}
	for _, r := range testServer().routes() {
		want[r.method+" "+r.path] = call{r.needs == open, slices.Sorted(slices.Values(r.query))}
	}
	ids := map[string]string{}
	for path, methods := range readDocument(t).Paths {
		for method, raw := range methods {
			if method == "parameters" {
				continue
			}
			var o operation
			if err := json.Unmarshal(raw, &o); err != nil {
				t.Fatal(err)
			}
			name := strings.ToUpper(method) + " " + path
			if other, twice := ids[o.OperationID]; twice || o.OperationID == "" {
				t.Errorf("operationId %q of %s is empty or that of %s, too", o.OperationID, name, other)
			}
			ids[o.OperationID] = name
			var query []string
			for _, p := range o.Parameters {
				if p.In == "query" {
					query = append(query, p.Name)
				}
			}
			got[name] = call{o.Security != nil && len(*o.Security) == 0, slices.Sorted(slices.Values(query))}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("routes (-) and document (+) differ:\n%s", d)
	}
}

// wire has every type of the API's JSON.
func wire() map[string]any {
	return map[string]any{
		"Workspace": api.Workspace{}, "Archive": api.Archive{}, "ArchiveList": api.ArchiveList{}, "ArchiveFile": api.ArchiveFile{}, "ArchiveFiles": api.ArchiveFiles{}, "Backup": api.Backup{}, "BackupList": api.BackupList{}, "BackupSpace": api.BackupSpace{}, "BackupStatus": api.BackupStatus{}, "NewBackup": api.NewBackup{}, "RestoreBackup": api.RestoreBackup{}, "Fork": api.Fork{}, "PutBack": api.PutBack{}, "PutBackResult": api.PutBackResult{}, "BackupChanges": api.BackupChanges{}, "ChangedFile": api.ChangedFile{}, "FileVersion": api.FileVersion{}, "FileVersions": api.FileVersions{}, "Condition": api.Condition{}, "Progress": api.Progress{}, "ProgressStep": api.ProgressStep{}, "WorkspaceList": api.WorkspaceList{},
		"CreateWorkspace": api.CreateWorkspace{}, "UpdateWorkspace": api.UpdateWorkspace{}, "Recover": api.Recover{},
		"Size": api.Size{}, "SizeList": api.SizeList{}, "Usage": api.Usage{}, "Repository": api.Repository{}, "Setup": api.Setup{}, "SetupStep": api.SetupStep{}, "Holder": api.Holder{}, "Exec": api.Exec{}, "ExecTerminal": api.ExecTerminal{}, "ExecInput": api.ExecInput{}, "ExecOutput": api.ExecOutput{},
		"Identity": api.Identity{}, "IdentityList": api.IdentityList{}, "UnlinkIdentity": api.UnlinkIdentity{}, "Passkey": api.Passkey{}, "PasskeyList": api.PasskeyList{}, "RenamePasskey": api.RenamePasskey{},
		"Login": api.Login{}, "User": api.User{}, "Session": api.Session{}, "SessionOf": api.SessionOf{}, "OpenSession": api.OpenSession{}, "SessionList": api.SessionList{}, "SessionsEnded": api.SessionsEnded{}, "CreateToken": api.CreateToken{}, "BeginDevice": api.BeginDevice{}, "DeviceLogin": api.DeviceLogin{}, "RedeemLogin": api.RedeemLogin{}, "RedeemedLogin": api.RedeemedLogin{},
		"Token": api.Token{}, "TokenList": api.TokenList{}, "Deleted": api.Deleted{}, "Error": api.Error{},
		"ChangePassword": api.ChangePassword{}, "Settings": api.Settings{}, "Setting": api.Setting{}, "AdminStatus": api.AdminStatus{}, "LostArchive": api.LostArchive{}, "LostVolume": api.LostVolume{}, "LostNode": api.LostNode{}, "LostNodeWorkspace": api.LostNodeWorkspace{}, "DeadNode": api.DeadNode{}, "ImageBuild": api.ImageBuild{}, "FailedDeletion": api.FailedDeletion{}, "IdleStop": api.IdleStop{}, "DatabaseDrill": api.DatabaseDrill{}, "DrillComparison": api.DrillComparison{}, "Server": api.Server{}, "ServerCondition": api.ServerCondition{}, "Breaker": api.Breaker{},
		"Orphan": api.Orphan{}, "OrphanList": api.OrphanList{}, "Account": api.Account{}, "AccountList": api.AccountList{}, "AccountLimits": api.AccountLimits{}, "Limit": api.Limit{},
		"CreateAccount": api.CreateAccount{}, "ImportAccounts": api.ImportAccounts{}, "ImportedAccounts": api.ImportedAccounts{}, "PatchAccount": api.PatchAccount{},
		"Group": api.Group{}, "GroupList": api.GroupList{}, "CreateGroup": api.CreateGroup{}, "PatchGroup": api.PatchGroup{}, "Member": api.Member{}, "RemovedMember": api.RemovedMember{}, "MemberList": api.MemberList{}, "SetMember": api.SetMember{},
		"Share": api.Share{}, "ShareList": api.ShareList{}, "NewShare": api.NewShare{}, "SharedWorkspace": api.SharedWorkspace{}, "SharedList": api.SharedList{}, "LeftShare": api.LeftShare{},
		"GitDisconnected": api.GitDisconnected{},
		"RestorePlan":     api.RestorePlan{}, "RestoreResult": api.RestoreResult{}, "RestoreStep": api.RestoreStep{}, "ApplyRestore": api.ApplyRestore{},
		"MoveSource": api.MoveSource{}, "MoveWorkspace": api.MoveWorkspace{}, "MoveWorkspaceList": api.MoveWorkspaceList{}, "MoveRecord": api.MoveRecord{}, "MoveArchive": api.MoveArchive{}, "MoveUser": api.MoveUser{}, "MoveIdentity": api.MoveIdentity{},
		"AdminWorkspace": api.AdminWorkspace{}, "AdminWorkspaceList": api.AdminWorkspaceList{}, "Used": api.Used{}, "Administer": api.Administer{}, "AdminRecover": api.AdminRecover{},
		"AdminTimeouts": api.AdminTimeouts{}, "AdminSize": api.AdminSize{}, "HandOver": api.HandOver{}, "HandOverRequest": api.HandOverRequest{}, "AnswerHandOver": api.AnswerHandOver{}, "UsageDay": api.UsageDay{}, "UsageReport": api.UsageReport{}, "AuditEntry": api.AuditEntry{}, "AuditLog": api.AuditLog{},
		"Banner": api.Banner{}, "SetBanner": api.SetBanner{}, "Notice": api.Notice{}, "NoticeList": api.NoticeList{},
		"Scripts": api.Scripts{}, "ProjectPort": api.ProjectPort{}, "Port": api.Port{}, "PortList": api.PortList{}, "SharePort": api.SharePort{},
		"Template": api.Template{}, "TemplateParameter": api.TemplateParameter{}, "TemplateVersion": api.TemplateVersion{}, "TemplateList": api.TemplateList{}, "SaveTemplate": api.SaveTemplate{}, "SavedTemplate": api.SavedTemplate{}, "TemplateChange": api.TemplateChange{}, "TemplateText": api.TemplateText{}, "WorkspaceTemplate": api.WorkspaceTemplate{}, "UpdateTemplate": api.UpdateTemplate{},
		"AddSSHKey": api.AddSSHKey{}, "SSHKey": api.SSHKey{}, "SSHKeyList": api.SSHKeyList{}, "SSHServer": api.SSHServer{},
		"DevcontainerList": api.DevcontainerList{}, "DevcontainerBuild": api.DevcontainerBuild{}, "Devcontainer": api.Devcontainer{}, "DevcontainerScript": api.DevcontainerScript{}, "DevcontainerCommand": api.DevcontainerCommand{}, "DevcontainerSecret": api.DevcontainerSecret{}, "DevcontainerIgnored": api.DevcontainerIgnored{},
		"UseDevcontainer": api.UseDevcontainer{}, "WorkspaceDevcontainer": api.WorkspaceDevcontainer{},
		"Secret": api.Secret{}, "SecretList": api.SecretList{}, "SecretWaiting": api.SecretWaiting{}, "SecretMissing": api.SecretMissing{}, "CreateSecret": api.CreateSecret{}, "UpdateSecret": api.UpdateSecret{},
		"Dotfiles":    api.Dotfiles{},
		"GitIdentity": api.GitIdentity{}, "SetGitIdentity": api.SetGitIdentity{}, "GitSignatureRequest": api.GitSignatureRequest{}, "GitSignature": api.GitSignature{},
		"GitConnection": api.GitConnection{}, "GitConnectionList": api.GitConnectionList{}, "NewGitConnection": api.NewGitConnection{}, "GitCredential": api.GitCredential{},
	}
}

// The document has exactly the JSON fields, each with its type and whether it may be null
// or missing.
func TestDocumentMatchesFields(t *testing.T) {
	t.Parallel()
	d := readDocument(t)
	if d := cmp.Diff(slices.Sorted(maps.Keys(wire())), slices.Sorted(maps.Keys(d.Components.Schemas))); d != "" {
		t.Errorf("types (-) and schemas (+) differ:\n%s", d)
	}
	requests := []string{"CreateWorkspace", "UpdateWorkspace", "Recover", "Login", "BeginDevice", "RedeemLogin", "CreateToken", "ChangePassword", "UnlinkIdentity", "RenamePasskey", "CreateAccount", "PatchAccount", "ApplyRestore", "SharePort", "AddSSHKey", "Exec", "ExecInput", "Administer", "AdminRecover", "AdminTimeouts", "AdminSize", "HandOver", "AnswerHandOver", "SetBanner", "Repository", "SaveTemplate", "UpdateTemplate", "UseDevcontainer", "NewBackup", "RestoreBackup", "Fork", "PutBack"}
	for name, v := range wire() {
		s := d.Components.Schemas[name]
		typ := reflect.TypeOf(v)
		var fields, required []string
		for i := range typ.NumField() {
			f := typ.Field(i)
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields = append(fields, field)
			if options == "" {
				required = append(required, field)
			}
			want := describe(f.Type)
			// In requests, a null pointer is an absent field; in responses, null requires a field
			// that is always present.
			want.null = want.null && (options != "omitempty" || slices.Contains(requests, name))
			if got := s.Properties[field].describe(); got != want {
				t.Errorf("%s.%s is %+v, in the document %+v", name, field, want, got)
			}
		}
		slices.Sort(fields)
		slices.Sort(required)
		if d := cmp.Diff(fields, slices.Sorted(maps.Keys(s.Properties))); d != "" {
			t.Errorf("%s: fields (-) and properties (+) differ:\n%s", name, d)
		}
		if d := cmp.Diff(required, slices.Sorted(slices.Values(s.Required))); d != "" {
			t.Errorf("%s: required fields differ, code (-), document (+):\n%s", name, d)
		}
		if closed := s.AdditionalProperties == false; closed != slices.Contains(requests, name) {
			t.Errorf("%s: additionalProperties: false is %v", name, closed)
		}
	}
}

// shape returns a field's type in JSON schema.
type shape struct {
	of   string
	null bool
}

func describe(t reflect.Type) shape {
	switch {
	case t == reflect.TypeFor[api.Nullable[int]](), t == reflect.TypeFor[api.Nullable[int64]]():
		return shape{"integer", true}
	case t == reflect.TypeFor[api.Nullable[string]]():
		return shape{"string", true}
	case t == reflect.TypeFor[api.Nullable[map[string]*string]]():
		return shape{"object", true}
	case t == reflect.TypeFor[api.Nullable[time.Time]]():
		return shape{"date-time", true}
	case t.Kind() == reflect.Pointer:
		return shape{describe(t.Elem()).of, true}
	case t == reflect.TypeFor[time.Time]():
		return shape{of: "date-time"}
	case t.Kind() == reflect.Struct:
		return shape{of: t.Name()}
	case t.Kind() == reflect.Slice:
		return shape{of: "[]" + describe(t.Elem()).of}
	case t.Kind() == reflect.Map:
		return shape{of: "object"}
	case t.Kind() == reflect.Bool:
		return shape{of: "boolean"}
	case t.Kind() == reflect.Float64:
		return shape{of: "number"}
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64, t.Kind() == reflect.Uint16:
		return shape{of: "integer"}
	}
	return shape{of: t.Kind().String()}
}

func (s schema) describe() shape {
	if s.Ref != "" {
		return shape{of: s.Ref[strings.LastIndex(s.Ref, "/")+1:]}
	}
	if len(s.OneOf) == 2 && s.OneOf[1].Type == "null" {
		return shape{s.OneOf[0].describe().of, true}
	}
	var of string
	var null bool
	switch t := s.Type.(type) {
	case string:
		of = t
	case []any:
		of, null = t[0].(string), len(t) == 2 && t[1] == "null"
	}
	switch {
	case of == "string" && s.Format == "date-time":
		of = "date-time"
	case of == "array":
		of = "[]" + s.Items.describe().of
	}
	return shape{of, null}
}

// The enums of the document are the values in the code.
func TestDocumentMatchesEnums(t *testing.T) {
	t.Parallel()
	d := readDocument(t)
	ws := d.Components.Schemas["Workspace"].Properties
	check := func(name string, s schema, want []string) {
		t.Helper()
		var got []string
		for _, v := range s.Enum {
			if v != nil {
				got = append(got, v.(string))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: code (-) and document (+) differ:\n%s", name, d)
		}
	}
	texts := func(n int, at func(int) string) (out []string) {
		for i := range n {
			out = append(out, at(i))
		}
		return out
	}
	phases, ops, reasons := workspace.Phases(), workspace.Operations(), workspace.ErrorReasons()
	check("phase", ws["phase"], texts(len(phases), func(i int) string { return string(phases[i]) }))
	check("operation", ws["operation"], texts(len(ops), func(i int) string { return string(ops[i]) }))
	check("error_reason", ws["error_reason"], texts(len(reasons), func(i int) string { return string(reasons[i]) }))
	check("desired_state", ws["desired_state"], []string{"DELETED", "ARCHIVED", "STANDBY", "RUNNING"})
	check("kind", d.Components.Schemas["Session"].Properties["kind"], []string{api.SessionCookie, api.SessionToken, api.SessionWorkspace})
	visible := []string{string(workspace.VisibleOwner), string(workspace.VisibleUsers), string(workspace.VisiblePublic)}
	check("visible_to", d.Components.Schemas["Port"].Properties["visible_to"], visible)
	check("max_visibility", d.Components.Schemas["PortList"].Properties["max_visibility"], visible)
	check("with", d.Components.Schemas["SharePort"].Properties["with"], visible[1:])
	var codes []string
	for c := range statuses {
		codes = append(codes, string(c))
	}
	check("error", d.Components.Schemas["Error"].Properties["error"], codes)
}

// Every $ref has a target.
func TestDocumentRefsHaveTargets(t *testing.T) {
	t.Parallel()
	var d map[string]any
	if err := json.Unmarshal(api.OpenAPI, &d); err != nil {
		t.Fatal(err)
	}
	n := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				n++
				var at any = d
				for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
					m, _ := at.(map[string]any)
					at = m[part]
				}
				if at == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, e := range v {
				walk(e)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(d)
	if n < 20 {
		t.Errorf("only %d references seen", n)
	}
}
