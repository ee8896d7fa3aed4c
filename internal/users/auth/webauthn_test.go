package auth

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/testing/softkey"
)

func partyOf(t *testing.T, origin string) *party {
	t.Helper()
	u, err := url.Parse(origin)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newParty(u)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	origin = "https://code.example.com"
	host   = "code.example.com"
)

func TestPossible(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		origin: true, "https://code.example.com:8443": true, "http://localhost:8080": true, "https://localhost": true, "http://code.localhost": true,
		"http://code.example.com": false, "https://192.0.2.1": false, "http://127.0.0.1:8080": false, "https://[2001:db8::1]": false, "https://": false,
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		_, err = newParty(u)
		if got := PasskeysPossible(u); got != want || (err == nil) != want || err != nil && !errors.Is(err, errPasskeyAddress) {
			t.Errorf("%s: %v, %v, want %v", address, got, err, want)
		}
	}
}

// registered is a user with this key.
func registered(t *testing.T, p *party, id string, k *softkey.Key) passkeyUser {
	t.Helper()
	u := passkeyUser{ID: []byte(id), Name: id}
	options, c, err := p.BeginRegistration(u)
	if err != nil {
		t.Fatal(err)
	}
	key, err := p.FinishRegistration(u, c, k.Create(options))
	if err != nil {
		t.Fatal(err)
	}
	u.Keys = []passkeyKey{key}
	return u
}

func TestLogin(t *testing.T) {
	t.Parallel()
	p := partyOf(t, origin)
	k := softkey.New(t, origin, host)
	u := registered(t, p, "ann", k)
	k.Handle = u.ID
	for range 3 {
		options, c, err := p.BeginLogin(u)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(options), `"userVerification":"preferred"`) {
			t.Errorf("the options: %s", options)
		}
		use, err := p.FinishLogin(u, c, k.Sign(options))
		if err != nil || use.Cloned {
			t.Fatalf("cloned %v, %v", use.Cloned, err)
		}
		u.Keys = []passkeyKey{use.passkeyKey}
	}
	// A copy of the key, whose counter is behind.
	k.Count = 1
	options, c, err := p.BeginLogin(u)
	if err != nil {
		t.Fatal(err)
	}
	if use, err := p.FinishLogin(u, c, k.Sign(options)); err != nil || !use.Cloned {
		t.Errorf("a copy: cloned %v, %v", use.Cloned, err)
	}
	// A key without a counter is never a copy.
	none := softkey.New(t, origin, host)
	none.Count = -1
	u = registered(t, p, "ben", none)
	for range 2 {
		options, c, _ := p.BeginLogin(u)
		if use, err := p.FinishLogin(u, c, none.Sign(options)); err != nil || use.Cloned {
			t.Errorf("without a counter: %v, %v", use.Cloned, err)
		}
	}
}

func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	p := partyOf(t, origin)
	mine, other := softkey.New(t, origin, host), softkey.New(t, origin, host)
	ann, ben := registered(t, p, "ann", mine), registered(t, p, "ben", other)
	options, c, err := p.BeginLogin(ann)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := p.BeginLogin(ann)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(*softkey.Key)) *softkey.Key {
		k := *mine
		f(&k)
		return &k
	}
	for name, response := range map[string][]byte{
		"another user's key":      other.Sign(options),
		"another challenge":       mine.Sign(again),
		"another page":            change(func(k *softkey.Key) { k.Origin = "https://evil.example" }).Sign(options),
		"a workspace's page":      change(func(k *softkey.Key) { k.Origin = "https://id." + host }).Sign(options),
		"another port":            change(func(k *softkey.Key) { k.Origin = origin + ":8443" }).Sign(options),
		"plain http":              change(func(k *softkey.Key) { k.Origin = "http://" + host }).Sign(options),
		"another host":            change(func(k *softkey.Key) { k.RPID = "evil.example" }).Sign(options),
		"another user's handle":   change(func(k *softkey.Key) { k.Handle = ben.ID }).Sign(options),
		"another key with its id": change(func(k *softkey.Key) { *k = *softkey.New(t, origin, host); k.ID = mine.ID }).Sign(options),
		"a registration":          mine.Create(options),
		"nothing":                 nil,
		"no JSON":                 []byte("x"),
		"too much":                make([]byte, maxPasskeyResponse+1),
	} {
		if _, err := p.FinishLogin(ann, c, response); !errors.Is(err, errPasskeyRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.FinishLogin(ben, c, other.Sign(options)); !errors.Is(err, errPasskeyRefused) {
		t.Errorf("another user's challenge: %v", err)
	}
	elsewhere := partyOf(t, "https://other.example.com")
	if _, err := elsewhere.FinishLogin(ann, c, mine.Sign(options)); !errors.Is(err, errPasskeyRefused) {
		t.Errorf("another server's challenge: %v", err)
	}
	if _, err := p.FinishLogin(ann, c, mine.Sign(options)); err != nil {
		t.Errorf("the right one: %v", err)
	}
}

func TestRefusedRegistrations(t *testing.T) {
	t.Parallel()
	p := partyOf(t, origin)
	u := passkeyUser{ID: []byte("ann"), Name: "ann"}
	options, c, err := p.BeginRegistration(u)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := p.BeginRegistration(u)
	if err != nil {
		t.Fatal(err)
	}
	key := softkey.New(t, origin, host)
	for name, response := range map[string][]byte{
		"another page":      softkey.New(t, "https://evil.example", host).Create(options),
		"another host":      softkey.New(t, origin, "evil.example").Create(options),
		"another challenge": key.Create(again),
		"a login":           key.Sign(options),
		"nothing":           nil,
	} {
		if _, err := p.FinishRegistration(u, c, response); !errors.Is(err, errPasskeyRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
