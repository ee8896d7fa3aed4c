package importm1

import (
	"crypto/sha256"
	"strings"
	"time"

	"github.com/google/uuid"
)

// newID returns the new id for the id old: a UUIDv7 with the time of old and a
// hash of old and this installation. So each run computes the same id, and two
// installations that import the same database do not collide in Docker or the
// bucket.
func newID(installation, kind, old string, created time.Time) string {
	at, ok := ulidTime(old)
	if !ok {
		at = created
	}
	sum := sha256.Sum256([]byte("codehub import-m1\x00" + installation + "\x00" + kind + "\x00" + old))
	var id uuid.UUID
	copy(id[:], sum[:])
	ms := uint64(max(at.UnixMilli(), 0))
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70 // version 7
	id[8] = id[8]&0x3f | 0x80 // variant
	return id.String()
}

// ulidTime returns the time of a ULID: 26 digits of Crockford's base 32, of
// which the first ten are milliseconds.
func ulidTime(s string) (time.Time, bool) {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	if len(s) != 26 || s[0] > '7' {
		return time.Time{}, false
	}
	var ms int64
	for i, c := range []byte(strings.ToUpper(s)) {
		v := strings.IndexByte(digits, c)
		if v < 0 {
			return time.Time{}, false
		}
		if i < 10 {
			ms = ms<<5 | int64(v)
		}
	}
	return time.UnixMilli(ms).UTC(), true
}

// addressable reports whether an old id is valid in a path and can be
// redirected; every ULID is.
func addressable(old string) bool {
	if old == "" || len(old) > 64 {
		return false
	}
	for _, c := range []byte(old) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
