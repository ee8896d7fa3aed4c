package dashboard

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/webauthn"
	"github.com/chromedp/chromedp"

	"codehub/internal/testing/harness/fixture"
)

// authenticator gives the tab a virtual one, as a laptop has.
func (b *tab) authenticator() webauthn.AuthenticatorID {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, webauthn.Enable, webauthn.EnableParams{}); err != nil {
		b.t.Fatal(err)
	}
	made, err := chromedp.Call(b.ctx, webauthn.AddVirtualAuthenticator, webauthn.AddVirtualAuthenticatorParams{Options: &webauthn.VirtualAuthenticatorOptions{
		Protocol: webauthn.AuthenticatorProtocolCtap2, Transport: webauthn.AuthenticatorTransportInternal,
		HasResidentKey: true, HasUserVerification: true, IsUserVerified: true, AutomaticPresenceSimulation: true,
	}})
	if err != nil {
		b.t.Fatal(err)
	}
	return made.AuthenticatorID
}

// bogus makes the signatures of an authenticator wrong, or right again.
func (b *tab) bogus(id webauthn.AuthenticatorID, wrong bool) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, webauthn.SetResponseOverrideBits, webauthn.SetResponseOverrideBitsParams{AuthenticatorID: id, IsBogusSignature: &wrong})
	if err != nil {
		b.t.Fatal(err)
	}
}

// logOut forgets the tab's cookies.
func (b *tab) logOut() {
	b.t.Helper()
	b.visit("/logout")
	b.press("main form button")
	b.shown("#username")
}

// passwordByHand types the username and the password.
func (b *tab) passwordByHand() {
	b.t.Helper()
	b.visit("/login?next=/settings/account")
	b.enter("#username", "admin")
	b.enter("#password", adminPassword+"\r")
	b.shown("#passkey")
}

// In a real browser with a virtual authenticator, by keyboard alone: a user registers a
// passkey, logs in with it, is refused with a wrong signature, and uses a recovery code.
func TestPasskeyInBrowser(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, false)
	b := w.tab()
	device := b.authenticator()
	shots := t.ArtifactDir()
	b.logIn()
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/account")
		b.shown("#passkeys")
		b.press("#new-passkey")
		b.shown("dialog[open] #f-current")
		b.shoot(shots, l, "passkey")
	}
	b.visit("/settings/account")
	b.eval(`document.querySelector('#new-passkey').focus()`)
	b.key("\r", `document.querySelector('dialog[open] #f-current')`)
	b.keys("f-passkey_name", "Laptop")
	b.enter("#f-current", adminPassword+"\r")
	b.until(`document.activeElement.id === 'passkey'`)
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/passkeys/register")
		b.shown("#passkey")
		b.shoot(shots, l, "passkey-create")
	}
	b.until(`document.activeElement.id === 'passkey'`)
	b.key("\r", `document.querySelector('#codes')`)
	codes := strings.Fields(value(b, chromedp.Evaluate[string](`document.querySelector('#codes').textContent`)))
	if len(codes) != 10 {
		t.Errorf("the recovery codes: %q", codes)
	}
	b.press("#codes-kept")
	b.shown(".toast")
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/account")
		b.press("#new-codes")
		b.shown("dialog[open] #f-current")
		b.enter("#f-current", adminPassword+"\r")
		b.shown("dialog[open] #codes")
		b.shoot(shots, l, "recovery-codes")
	}
	codes = strings.Fields(value(b, chromedp.Evaluate[string](`document.querySelector('#codes').textContent`)))
	b.press("#codes-kept")
	// The same device makes no second one.
	b.press("#new-passkey")
	b.shown("dialog[open] #f-current")
	b.keys("f-passkey_name", "Again")
	b.enter("#f-current", adminPassword+"\r")
	b.press("#passkey")
	b.shown("#passkey-problem")
	b.until(`document.querySelector('#passkey-problem-text').textContent === document.querySelector('form[data-passkey]').dataset.known`)
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/account")
		b.shown("[data-passkey-id]")
		b.shoot(shots, l, "account-passkeys")
	}

	b.logOut()
	b.passwordByHand()
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/passkey")
		b.shown("#passkey")
		b.shoot(shots, l, "passkey-login")
	}
	b.until(`document.activeElement.id === 'passkey'`)
	b.key("\r", `document.querySelector('.topbar')`)

	b.logOut()
	b.passwordByHand()
	b.bogus(device, true)
	b.press("#passkey")
	b.until(`!document.querySelector('#passkey-problem').hidden && document.querySelector('#passkey-problem-text').textContent.trim()`)
	b.bogus(device, false)
	b.press("#recovery summary")
	b.enter("#code", strings.ToLower(codes[0])+"\r")
	b.shown("#passkeys")
	b.until(`document.querySelector('#codes-left').textContent.includes('9')`)
	if n := fixture.Query[int](w.Database, `SELECT count(*) FROM sessions`); n == 0 {
		t.Error("there is no session")
	}
}

// In a real browser: a login registers the required passkey, and the next one uses it.
func TestRequiredPasskeyInBrowser(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, true)
	b := w.tab()
	b.authenticator()
	shots := t.ArtifactDir()
	b.passwordByHand()
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/passkey")
		b.shown("#name")
		b.shoot(shots, l, "passkey-required")
	}
	b.visit("/passkey?next=/settings/account")
	b.enter("#name", "Laptop\r")
	b.shown("#codes")
	b.press("#codes-kept")
	b.shown("[data-passkey-id]")
	b.logOut()
	b.passwordByHand()
	b.press("#passkey")
	b.shown("[data-passkey-id]")
}
