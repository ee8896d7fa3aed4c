// Package gitidentity keeps the author of users' commits and the SSH keys with which git in their
// workspaces reaches servers and signs. The private keys stay on the server, which signs.
package gitidentity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"
	"golang.org/x/text/unicode/norm"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

// Lengths of a name and of an e-mail address, in bytes.
const (
	MaxName  = 255
	MaxEmail = 254
)

// Service keeps the identities.
type Service struct {
	store *postgres.DB
	keys  *sealed.Ring
}

// New returns a Service.
func New(store *postgres.DB, keys *sealed.Ring) *Service { return &Service{store, keys} }

// Get returns the caller's identity.
func (s *Service) Get(ctx context.Context, caller workspace.Caller) (api.GitIdentity, error) {
	return s.store.GitIdentity(ctx, caller)
}

// Set replaces the name, the e-mail address and the choice to sign. CodeInvalid names the field.
// CodeNotSupported if a key is needed and the server cannot encrypt it.
func (s *Service) Set(ctx context.Context, caller workspace.Caller, in api.SetGitIdentity) (api.GitIdentity, error) {
	in.Name, in.Email = norm.NFC.String(strings.TrimSpace(in.Name)), norm.NFC.String(strings.TrimSpace(in.Email))
	if len(in.Name) > MaxName || !plain(in.Name) {
		return api.GitIdentity{}, invalid("name", "A name has at most 255 bytes, without line breaks, < and >.")
	}
	if in.Email != "" && !validEmail(in.Email) {
		return api.GitIdentity{}, invalid("email", "This is not an e-mail address.")
	}
	var key postgres.GitKey
	if in.SignCommits {
		now, err := s.store.GitIdentity(ctx, caller)
		if err != nil {
			return now, err
		}
		if now.PublicKey == "" {
			if key, err = s.newKey(caller.UserID); err != nil {
				return now, err
			}
		}
	}
	return s.store.SetGitIdentity(ctx, caller, in, key)
}

// plain reports whether git takes s into the author of a commit as it is.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsAny(s, "<>") && !strings.ContainsFunc(s, unicode.IsControl)
}

// validEmail is not strict: git takes any text, and servers compare it with their accounts.
func validEmail(s string) bool {
	name, host, found := strings.Cut(s, "@")
	return found && name != "" && host != "" && len(s) <= MaxEmail && plain(s) && !strings.ContainsFunc(s, unicode.IsSpace) && !strings.Contains(host, "@")
}

func invalid(field, message string) error {
	return &workspace.Error{Code: workspace.CodeInvalid, Message: message, Details: map[string]any{"field": field}}
}

// NewKey makes a key of the caller, which replaces the former one. CodeNotSupported if the server
// cannot encrypt it.
func (s *Service) NewKey(ctx context.Context, caller workspace.Caller) (api.GitIdentity, error) {
	key, err := s.newKey(caller.UserID)
	if err != nil {
		return api.GitIdentity{}, err
	}
	return s.store.ReplaceGitKey(ctx, caller, key)
}

func (s *Service) newKey(userID string) (k postgres.GitKey, err error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return k, err
	}
	seed := private.Seed()
	defer clear(seed)
	defer clear(private)
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return k, err
	}
	k.PublicKey = line(key)
	k.Sealed, err = s.keys.Seal(seed, postgres.GitKeyOwner(userID, k.PublicKey))
	return k, err
}

// line is a key as in authorized_keys, without a comment.
func line(key ssh.PublicKey) string { return string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(key))) }

// guests is why the key of a workspace's owner is not used.
const guests = "The workspace is shared with users who may not use the SSH key of its owner. The owner can allow it where the workspace is shared."

// Of returns what git and ssh in a workspace have of its owner. While it is shared for use with
// someone who may not use the owner's credentials, that is neither the key nor signatures.
func (s *Service) Of(ctx context.Context, id workspace.ID) (agent.Git, error) {
	now, err := s.store.GitIdentityOf(ctx, id)
	if err != nil {
		return agent.Git{}, err
	}
	g := agent.Git{Name: now.Name, Email: now.Email, Key: now.PublicKey, Sign: now.SignCommits}
	if g.Key == "" {
		return g, nil
	}
	refused, err := s.store.GitGuests(ctx, id)
	if refused {
		g.Key, g.Sign, g.Refused = "", false, guests
	}
	return g, err
}

// Sign signs with the key of a workspace's owner, for a program in the workspace. CodeForbidden for
// other callers, and where Of offers no key; CodeNotFound for a key that the owner does not have
// any more.
func (s *Service) Sign(ctx context.Context, caller workspace.Caller, in api.GitSignatureRequest) (out api.GitSignature, err error) {
	if !caller.Inside {
		return out, workspace.Errorf(workspace.CodeForbidden, "Only a program in the workspace can have something signed with its owner's key.")
	}
	data, err := base64.StdEncoding.DecodeString(in.Data)
	if err != nil || len(data) == 0 || len(data) > agent.MaxSignedData {
		return out, invalid("data", "The data is not base64 of 1 byte to 16 KiB.")
	}
	key, err := s.store.GitKeyOf(ctx, caller.UserID)
	if err != nil {
		return out, err
	}
	if key.PublicKey != in.PublicKey {
		return out, workspace.NotFound("SSH key")
	}
	switch refused, err := s.store.GitGuests(ctx, caller.Only); {
	case err != nil:
		return out, err
	case refused:
		return out, workspace.Errorf(workspace.CodeForbidden, "%s", guests)
	}
	seed, err := s.keys.Open(key.Sealed, postgres.GitKeyOwner(caller.UserID, key.PublicKey))
	if err == nil && len(seed) != ed25519.SeedSize {
		err = errors.New("the stored key is no Ed25519 key")
	}
	if err != nil {
		var coded *workspace.Error
		if !errors.As(err, &coded) { // the server's paths are not for users
			err = &workspace.Error{Code: workspace.CodeUnavailable, Message: "The SSH key cannot be decrypted. Make a new one.", Err: err}
		}
		return out, err
	}
	defer clear(seed)
	private := ed25519.NewKeyFromSeed(seed)
	defer clear(private)
	return api.GitSignature{Format: ssh.KeyAlgoED25519, Signature: base64.StdEncoding.EncodeToString(ed25519.Sign(private, data))}, nil
}
