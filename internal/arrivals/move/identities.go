package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"codehub/api"
	"codehub/client"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// maxIdentities bounds those of a user: one for each provider, and a few more.
const maxIdentities = 50

// identities are those that a user has at the source.
type identities struct {
	source  *source
	list    []postgres.ArrivedIdentity
	earlier bool // the version of the source does not have the call
}

// read asks the source for the identities of a user that is about to be added.
func (i *identities) read(ctx context.Context, to *postgres.ArrivedUser) error {
	u, err := read(ctx, i.source, func(ctx context.Context) (api.MoveUser, error) { return i.source.Client.MoveUser(ctx, to.OldID) })
	if i.earlier = client.CodeOf(err) == "not_found"; err != nil && !i.earlier {
		return fromSource(fmt.Errorf("read the identities of %s: %w", to.Username, err))
	}
	i.list = nil
	for _, one := range u.Identities[:min(len(u.Identities), maxIdentities)] {
		if one.Issuer != "" && one.Subject != "" && len(one.Issuer) <= 2048 && len(one.Subject) <= 255 && !strings.ContainsRune(one.Issuer+one.Subject, 0) {
			i.list = append(i.list, postgres.ArrivedIdentity{Issuer: one.Issuer, Subject: one.Subject, Username: one.Username})
		}
	}
	to.Identities = i.list
	return nil
}

// logins says how a user that was added logs in.
func (i *identities) logins(ctx context.Context, id string) (notes []string, err error) {
	linked, err := i.source.run.DB.Identities(ctx, workspace.Caller{UserID: id})
	if err != nil {
		return nil, err
	}
	for _, one := range linked {
		notes = append(notes, "logs in with "+one.Issuer+" as at the source, if CODEHUB_OIDC_FILE has it")
	}
	for _, one := range i.list {
		if !slices.ContainsFunc(linked, func(l postgres.Identity) bool { return l.Issuer == one.Issuer && l.Subject == one.Subject }) {
			notes = append(notes, "the account at "+one.Issuer+" belongs to another user here, and was not linked")
		}
	}
	if i.earlier {
		notes = append(notes, "the source is of a version that does not tell how users log in with identity providers")
	}
	if len(linked) == 0 {
		notes = append(notes, "has no password here: send an invitation (codehub users invite), or set one with codehub users reset-password")
	}
	return notes, nil
}
