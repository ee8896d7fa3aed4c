package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKXb8Jw8ZbQy7nH0v8w2P3Jv2b6k0cKqU3c1mJtqk3Xx ann@laptop"

func TestKeysAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	contains(t, "the account page", b.get("/settings/account").body, "SSH keys", "You have no SSH keys.")
	contains(t, "the dialog", b.get("/settings/keys/new").body, "Public key", `name="public_key"`)

	a := b.htmx("/settings/keys", url.Values{"public_key": {"  " + publicKey + "\n"}})
	contains(t, "after the key was added", a.body, `id="ssh-keys"`, "ann@laptop", "SHA256:", "The SSH key was added.", "never used", "never expires")
	a = b.htmx("/settings/keys", url.Values{"public_key": {publicKey}})
	contains(t, "the same key again", a.body, "has been added already")
	a = b.htmx("/settings/keys", url.Values{"public_key": {"-----BEGIN OPENSSH PRIVATE KEY-----\nsecret"}})
	contains(t, "a private key", a.body, "Keep it secret")
	lacks(t, "a private key", a.body, "OPENSSH PRIVATE")
	for _, bad := range []string{"", "ssh-ed25519 AAAA", "hello"} {
		if a := b.htmx("/settings/keys", url.Values{"public_key": {bad}}); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%q: %d", bad, a.status)
		}
	}

	id := regexp.MustCompile(`data-key="([^"]+)"`).FindStringSubmatch(b.get("/settings/account").body)[1]
	ann := w.person("ann")
	ann.post("/settings/keys/"+id+"/remove", nil)
	contains(t, "after another user tried to remove it", b.get("/settings/account").body, "ann@laptop")
	w.Exec(`UPDATE ssh_keys SET expires_at = now() + interval '50 hours'`)
	contains(t, "a key that expires", b.get("/settings/account").body, "expires in")
	w.Exec(`UPDATE ssh_keys SET expires_at = now() - interval '1 hour'`)
	contains(t, "an expired key", b.get("/settings/account").body, `<span class="warn">expired</span>`)
	// Without scripts.
	if a := b.post("/settings/keys/"+id+"/remove", nil); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/settings/account?note=key_removed") {
		t.Errorf("%d %v", a.status, a.header)
	}
	lacks(t, "after the key was removed", b.get("/settings/account").body, "ann@laptop")
}
