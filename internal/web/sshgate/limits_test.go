package sshgate

import (
	"math"
	"testing"
	"time"
)

func TestSlotsAreLimited(t *testing.T) {
	t.Parallel()
	a := newAdmission(Settings{MaxConnections: 1000, MaxPerUser: 1000}, Budget{Slots: 1600}, time.Now)
	s := a.shares
	if s.perUser >= s.open/4 || s.open+s.starting+s.turnedAway > 1600 {
		t.Fatalf("%+v", s)
	}
	if err := a.enter("ann"); err != nil {
		t.Fatal(err)
	}
	for range s.perUser - 1 {
		if err := a.enterChannel("ann"); err != nil {
			t.Fatal("a channel within the limit was refused:", err)
		}
	}
	if err := a.enterChannel("ann"); err != errChannelsOfUser {
		t.Error("a channel beyond the limit of a user:", err)
	}
	if err := a.enter("ann"); err != errTooMany {
		t.Error("a connection beyond the limit of a user:", err)
	}
	taken := s.perUser
	for user := 'a'; taken < s.open; user++ {
		for range min(s.perUser, s.open-taken) {
			if err := a.enterChannel(string(user)); err != nil {
				t.Fatal("another user's channel was refused:", err)
			}
			taken++
		}
	}
	if err := a.enterChannel("zoe"); err != errChannels {
		t.Error("a channel beyond the limit of all users:", err)
	}
	if err := a.enter("zoe"); err != errFull {
		t.Error("a connection beyond the limit of all users:", err)
	}
	a.leaveChannel("ann")
	if err := a.enterChannel("zoe"); err != nil {
		t.Error("a channel was refused after another one had ended:", err)
	}
}

// All the channels of one user take less than a third of the server's memory, and the unread
// ones of all users an eighth.
func TestBudgetOf(t *testing.T) {
	t.Parallel()
	for _, memory := range []int64{256 << 20, 512 << 20, 1 << 30, 4 << 30, 64 << 30} {
		b := BudgetOf(memory)
		s := sharesOf(b.Slots)
		if user := int64(s.perUser) * unreadMemory; user > memory/3 || s.perUser < minSlotsPerUser {
			t.Errorf("%d MiB: a user has %d channels", memory>>20, s.perUser)
		}
		if unread := int64(b.Unread) * unreadMemory; unread > memory/8 {
			t.Errorf("%d MiB: %d channels may be unread", memory>>20, b.Unread)
		}
	}
	if b := BudgetOf(math.MaxInt64); b.Slots != maxSlots || sharesOf(b.Slots).perUser != maxSlotsPerUser {
		t.Errorf("without a limit: %+v", b)
	}
	for _, slots := range []int{1, 2, 10, 75, 192} {
		if s := sharesOf(slots); s.starting < 1 || s.turnedAway < 1 || s.open < 1 || s.perUser < 1 || s.perUser > s.open {
			t.Errorf("%d slots: %+v", slots, s)
		}
	}
}

func TestChannelsOfRefusedConnectionAreLimited(t *testing.T) {
	t.Parallel()
	c := &connection{surplus: true}
	for range maxRefusedChannels {
		if c.begin() != nil {
			t.Fatal("a channel within the limit was refused")
		}
	}
	if c.begin() == nil {
		t.Error("a channel beyond the limit was admitted")
	}
	c.finish()
	if c.begin() != nil {
		t.Error("a channel was refused after another one had ended")
	}
}
