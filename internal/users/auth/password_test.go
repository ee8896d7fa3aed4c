package auth

import (
	"errors"
	"strings"
	"testing"
)

func TestPasswordHash(t *testing.T) {
	t.Parallel()
	h := newHasher(argonDefault, Settings{})
	hash, err := h.Hash(t.Context(), "here", password)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(hash, "$argon2id$v=19$m=65536,t=2,p=2$") {
		t.Errorf("hash is %s", hash)
	}
	again, err := h.Hash(t.Context(), "here", password)
	if err != nil || again == hash {
		t.Errorf("the same password twice: %s, %v", again, err)
	}
	for _, c := range []struct {
		hash, password string
		want           bool
	}{
		{hash, password, true},
		{hash, password + " ", false},
		{hash, "", false},
		{h.dummy, password, false},
		// from another system, with other parameters
		{"$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHRzb21lc2FsdA$TGRzhwY6EWCjTkG2uqVU9YZTHOLtWQWhwhxfYT3LFO8", "x", false},
	} {
		ok, err := h.Verify(t.Context(), "here", c.hash, c.password)
		if err != nil || ok != c.want {
			t.Errorf("verify %q against %s: %v, %v", c.password, c.hash, ok, err)
		}
	}
}

// Composed and decomposed characters are the same password.
func TestPasswordNormalization(t *testing.T) {
	t.Parallel()
	h := newHasher(argonCheap, Settings{})
	hash, err := h.Hash(t.Context(), "here", "비밀번호-é")
	if err != nil {
		t.Fatal(err)
	}
	decomposed := "\u1107\u1175\u1106\u1175\u11af\u1107\u1165\u11ab\u1112\u1169-e\u0301"
	if ok, err := h.Verify(t.Context(), "here", hash, decomposed); err != nil || !ok {
		t.Errorf("decomposed: %v, %v", ok, err)
	}
}

func TestInvalidHashes(t *testing.T) {
	t.Parallel()
	const salt, key = "c29tZXNhbHRzb21lc2FsdA", "TGRzhwY6EWCjTkG2uqVU9YZTHOLtWQWhwhxfYT3LFO8"
	good := "$argon2id$v=19$m=64,t=1,p=1$" + salt + "$" + key
	if _, _, _, err := decodeHash(good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "x", "$2b$12$abcdefghijklmnopqrstuv",
		strings.Replace(good, "argon2id", "argon2i", 1),
		strings.Replace(good, "v=19", "v=16", 1),
		strings.Replace(good, "m=64", "m=4294967295", 1),
		strings.Replace(good, "m=64", "m=1", 1),
		strings.Replace(good, "t=1", "t=0", 1),
		strings.Replace(good, "t=1", "t=1000000", 1),
		strings.Replace(good, "p=1", "p=0", 1),
		strings.Replace(good, "p=1", "p=300", 1),
		strings.Replace(good, salt, "", 1),
		strings.Replace(good, key, "", 1),
		strings.Replace(good, key, "!!!!", 1),
		good + "$",
	} {
		if _, _, _, err := decodeHash(bad); !errors.Is(err, errHash) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzDecodeHash(f *testing.F) {
	f.Add("$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$TGRzhwY6EWCjTkG2uqVU9YZTHOLtWQWhwhxfYT3LFO8")
	f.Fuzz(func(t *testing.T, s string) {
		p, salt, key, err := decodeHash(s)
		if err == nil && (p.memory > maxArgonMemory || p.time > maxArgonTime || p.threads == 0 || len(salt) < 8 || len(key) < 16) {
			t.Errorf("%q passes as %+v", s, p)
		}
	})
}

func TestCheckPassword(t *testing.T) {
	t.Parallel()
	for p, ok := range map[string]bool{
		"":                                 false,
		"1234567":                          false,
		"12345678":                         true,
		strings.Repeat("x", 1024):          true,
		strings.Repeat("x", 1025):          false,
		"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8": false,
		"Username":                         false,
		"비밀번":                              false, // nine bytes
		"비밀번호비밀번":                          false,
		"비밀번호비밀번호":                         true,
		"\u1107\u1175\u1106\u1175\u11af\u1107\u1165\u11ab": false, // 비밀번 decomposed
	} {
		if err := CheckPassword("username", p); (err == nil) != ok {
			t.Errorf("%.20q: %v", p, err)
		}
	}
}

func TestCheckUsername(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"ann": true, "김철수": true, "a.b-c_d@e.org": true, "7": true, strings.Repeat("x", 64): true,
		"": false, "-rf": false, ".x": false, "a b": false, "a\nb": false, "a/b": false, "<b>": false,
		strings.Repeat("x", 65): false, "\xff": false, "a\u202eb": false,
		"\u3164": false, "ad\u3164min": false, "\u115fann": false, "ann\u1160": false, "ann\uffa0": false, "a\u200bnn": false, "\u0301": false, "a\u0378": false,
	} {
		if err := CheckUsername(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
