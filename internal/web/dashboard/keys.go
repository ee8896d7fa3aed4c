package dashboard

import (
	"net/http"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/web/sshgate"
	"codehub/internal/workspace"
)

// keysView is the list of SSH keys on the account page.
type keysView struct {
	Keys    []keyView
	HostKey string // fingerprint of the server's own key; empty without an SSH listener
	Quota   quotaView
	Paging  paging
	OOB     bool
}

type keyView struct {
	postgres.SSHKey
	Fingerprint string
	Expired     bool
	Now         time.Time
}

func (d *Dashboard) readKeys(r *http.Request, c workspace.Caller) (v keysView, err error) {
	cursor := pageParam(r, "keys")
	list, next, err := d.Store.SSHKeys(r.Context(), c, postgres.Page{Limit: pageSize, Cursor: cursor})
	if err != nil {
		return v, err
	}
	quotas, err := d.Store.Quotas(r.Context(), c)
	if err != nil {
		return v, err
	}
	v.Quota = quotaView{quotas.SSHKeys, quotas.MaxSSHKeys}
	v.Paging = pagingOf("/settings/account", "keys", cursor, next)
	if d.SSH.Host != "" {
		v.HostKey = d.SSH.Fingerprint
	}
	now := d.Now()
	for _, k := range list {
		v.Keys = append(v.Keys, keyView{k, sshgate.Fingerprint(k.Hash), k.ExpiresAt != nil && !k.ExpiresAt.After(now), now})
	}
	return v, nil
}

// maxKeyName is the length of a key's name in characters.
const maxKeyName = 100

func (d *Dashboard) addKey(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f := d.form("ssh-key", r, nil)
	f.line("key_name", maxKeyName, false)
	f.Value["public_key"] = strings.TrimSpace(r.PostFormValue("public_key"))
	k, err := sshgate.ParseKey(f.Value["public_key"])
	switch {
	case f.Value["public_key"] == "":
		f.fail("public_key", "field.required")
	case sshgate.IsPrivateKey(f.Value["public_key"]):
		f.Value["public_key"] = "" // it is not sent back
		f.fail("public_key", "field.private_key")
	case err != nil:
		f.fail("public_key", "field.public_key_invalid")
	}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	name := f.Value["key_name"]
	if name == "" {
		name = k.DefaultName()
	}
	who, err := d.Auth.Identify(r, false)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	_, err = d.Store.AddSSHKey(r.Context(), who.Caller, postgres.SSHKey{Name: name, PublicKey: k.Line, Hash: k.Hash, ExpiresAt: who.Bound(nil)})
	if workspace.CodeOf(err) == workspace.CodeKeyTaken {
		f.fail("public_key", "err.key_taken")
		d.again(w, r, c, f)
		return
	}
	if err != nil {
		d.refuseForm(w, r, c, f, err)
		return
	}
	d.keysChanged(w, r, c, "key_added")
}

func (d *Dashboard) removeKey(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	err := d.Store.DeleteSSHKey(r.Context(), c, r.PathValue("key"))
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		d.refuse(w, r, c, "", err)
		return
	}
	d.keysChanged(w, r, c, "key_removed")
}

func (d *Dashboard) keysChanged(w http.ResponseWriter, r *http.Request, c workspace.Caller, note string) {
	if !isHTMX(r) || asPage(r) {
		d.redirect(w, r, notedAt("/settings/account", note, ""))
		return
	}
	v, err := d.readKeys(r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	v.OOB = true
	d.fragments(w, r, http.StatusOK, part{"ssh-keys", v}, part{"close-dialog", nil},
		part{"toast-oob", &toast{Text: d.set(r).lang.T("toast." + note + ".unnamed")}})
}
