package bucket

import "testing"

func TestReserveManifests(t *testing.T) {
	t.Parallel()
	b := &Bucket{}
	reserve := func(user string, size int64, want bool) (release func()) {
		t.Helper()
		release, ok := b.ReserveManifests(user, size)
		if ok != want {
			t.Errorf("%s gets %d bytes: %t", user, size, ok)
		}
		return release
	}
	large := reserve("ann", userManifests+1, true) // the only one of this user
	reserve("ann", 1, false)
	reserve("ann", 0, true)
	bob := reserve("bob", userManifests-1, true)
	reserve("bob", 1, true)
	reserve("bob", 1, false)
	large()
	large()
	reserve("ann", userManifests, true)
	bob()
	reserve("bob", userManifests, false)
	reserve("bob", userManifests-1, true)
	reserve("cid", userManifests, true)
	reserve("dan", userManifests, true)
	reserve("eve", 1, false) // all hold as much as they may
}
