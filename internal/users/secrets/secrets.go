// Package secrets keeps the secrets of users and groups, whose values are not read back: the API
// and the dashboard store them sealed, and workspaces get them at their start.
package secrets

import (
	"context"
	"encoding/base64"
	"errors"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/template"
)

// MaxValue is the size of a value in bytes.
const MaxValue = 64 << 10

// Lengths of a name and of the path of a file, in bytes.
const (
	MaxName = 64
	MaxPath = 512
)

// Service stores secrets.
type Service struct {
	store *postgres.DB
	keys  *sealed.Ring
}

// New returns a Service.
func New(store *postgres.DB, keys *sealed.Ring) *Service { return &Service{store, keys} }

// List returns the caller's secrets and those of the caller's groups.
func (s *Service) List(ctx context.Context, caller workspace.Caller) (api.SecretList, error) {
	return s.store.Secrets(ctx, caller)
}

// ListGroup returns the secrets of a group. CodeForbidden unless the caller is in it or an administrator.
func (s *Service) ListGroup(ctx context.Context, caller workspace.Caller, group string) (api.SecretList, error) {
	return s.store.GroupSecrets(ctx, caller, group)
}

// Get returns a secret that the caller may change, without its value.
func (s *Service) Get(ctx context.Context, caller workspace.Caller, id string) (api.Secret, error) {
	return s.store.Secret(ctx, caller, id)
}

// Create stores a secret of the caller.
func (s *Service) Create(ctx context.Context, caller workspace.Caller, in api.CreateSecret) (api.Secret, error) {
	return s.create(ctx, caller, "", in)
}

// CreateGroup stores a secret of a group.
func (s *Service) CreateGroup(ctx context.Context, caller workspace.Caller, group string, in api.CreateSecret) (api.Secret, error) {
	if in.WorkspaceID != "" {
		return api.Secret{}, invalid("workspace_id", "Secrets of a group are for workspaces of all its members.")
	}
	return s.create(ctx, caller, group, in)
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (s *Service) create(ctx context.Context, caller workspace.Caller, group string, in api.CreateSecret) (api.Secret, error) {
	if len(in.Name) > MaxName || !validName.MatchString(in.Name) {
		return api.Secret{}, invalid("name", "A secret's name has 1 to 64 letters, digits, dots, hyphens and underscores, and begins with a letter or a digit.")
	}
	id, err := uuid.NewV7()
	if err != nil {
		return api.Secret{}, err
	}
	owner := group
	if owner == "" {
		owner = caller.UserID
	}
	n := postgres.NewSecret{ID: id.String(), GroupID: group, Name: in.Name, Env: in.Env, File: in.File, Workspace: in.WorkspaceID, Template: in.Template}
	if err := s.fill(&n, owner, &in.Value, in.Encoding); err != nil {
		return api.Secret{}, err
	}
	return s.store.CreateSecret(ctx, caller, n)
}

// Update changes a secret of the caller or, by administrators, of a group.
func (s *Service) Update(ctx context.Context, caller workspace.Caller, id string, in api.UpdateSecret) (api.Secret, error) {
	old, err := s.store.Secret(ctx, caller, id)
	if err != nil {
		return old, err
	}
	n := postgres.NewSecret{ID: id, Name: old.Name, Env: old.Env, File: old.File}
	owner := caller.UserID
	if old.GroupID != nil {
		n.GroupID, owner = *old.GroupID, *old.GroupID
	}
	if old.WorkspaceID != nil {
		n.Workspace = *old.WorkspaceID
	}
	if old.Template != nil {
		n.Template = *old.Template
	}
	if in.Env != nil {
		n.Env = *in.Env
	}
	if in.File != nil {
		n.File = *in.File
	}
	if in.WorkspaceID.Set {
		if n.Workspace = ""; in.WorkspaceID.Value != nil {
			n.Workspace = *in.WorkspaceID.Value
		}
		if n.GroupID != "" && n.Workspace != "" {
			return old, invalid("workspace_id", "Secrets of a group are for workspaces of all its members.")
		}
		if n.Workspace != "" && !in.Template.Set {
			n.Template = ""
		}
	}
	if in.Template.Set {
		if n.Template = ""; in.Template.Value != nil {
			n.Template = *in.Template.Value
		}
		if n.Template != "" && !in.WorkspaceID.Set {
			n.Workspace = ""
		}
	}
	if in.Value == nil && n.Env != "" && old.Env == "" {
		return old, invalid("value", "Enter the value again: it has to be text for a variable.")
	}
	if err := s.fill(&n, owner, in.Value, in.Encoding); err != nil {
		return old, err
	}
	return s.store.UpdateSecret(ctx, caller, n)
}

// Delete removes a secret of the caller or, by administrators, of a group.
func (s *Service) Delete(ctx context.Context, caller workspace.Caller, id string) error {
	return s.store.DeleteSecret(ctx, caller, id)
}

// fill checks the variable, the file and the value, and seals the value; nil: it stays.
func (s *Service) fill(n *postgres.NewSecret, owner string, value *string, encoding string) (err error) {
	if n.Env == "" && n.File == "" {
		return invalid("env", "A secret needs a variable, a file or both.")
	}
	if n.Env != "" {
		if err := environ.CheckName(n.Env); err != nil {
			return refused(err)
		}
	}
	switch {
	case n.Template == "":
	case n.Workspace != "":
		return invalid("template", "A secret is for one workspace or for those of one template, not for both.")
	case !template.ValidName(n.Template):
		return invalid("template", "This is not the name of a template.")
	}
	if n.File != "" {
		if n.File, err = CleanPath(n.File); err != nil {
			return err
		}
	}
	if value == nil {
		return nil
	}
	plain := []byte(*value)
	defer func() { clear(plain) }()
	switch encoding {
	case "":
	case api.Base64:
		if plain, err = base64.StdEncoding.DecodeString(*value); err != nil {
			return invalid("value", "The value is not base64.")
		}
	default:
		return invalid("encoding", "The encoding is base64, or absent for text.")
	}
	switch {
	case len(plain) == 0:
		return invalid("value", "The value is empty.")
	case len(plain) > MaxValue:
		return invalid("value", "The value is longer than 64 KiB.")
	}
	if n.Env != "" {
		text := Variable(plain)
		defer clear(text)
		if err := environ.CheckText(n.Env, text); err != nil {
			return refused(err)
		}
	}
	n.Size = len(plain)
	n.Value, err = s.keys.Seal(plain, postgres.SecretOwner(n.ID, owner))
	return err
}

// Variable returns a copy of what a variable has of a value: without the newlines at its end, which
// files usually have.
func Variable(value []byte) []byte {
	end := len(value)
	for end > 0 && (value[end-1] == '\n' || value[end-1] == '\r') {
		end--
	}
	return append([]byte(nil), value[:end]...)
}

// CleanPath checks the file of a secret, which is below the home, and returns it as ~/path.
func CleanPath(file string) (string, error) {
	below, ok := strings.CutPrefix(file, "~/")
	clean := path.Clean("/" + below)[1:]
	switch {
	case !ok:
		return "", invalid("file", "A file begins with ~/, such as ~/.npmrc.")
	case clean == "" || strings.HasSuffix(below, "/") || strings.Contains("/"+below+"/", "/../"):
		return "", invalid("file", "This is not the path of a file in the home.")
	case len(clean) > MaxPath || !utf8.ValidString(clean) || strings.ContainsFunc(clean, unicode.IsControl):
		return "", invalid("file", "A file has at most 512 bytes, without control characters.")
	}
	return "~/" + clean, nil
}

// refused is the refusal of a variable.
func refused(err error) error {
	var e *environ.Error
	if !errors.As(err, &e) {
		return err
	}
	return &workspace.Error{Code: workspace.CodeInvalid, Message: "The variable is not allowed: " + e.Error() + ".", Details: map[string]any{"field": "env", "reason": e.Reason}, Err: e}
}

func invalid(field, message string) error {
	return &workspace.Error{Code: workspace.CodeInvalid, Message: message, Details: map[string]any{"field": field}}
}
