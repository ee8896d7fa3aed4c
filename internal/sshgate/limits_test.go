package sshgate

import (
	"testing"
	"time"
)

func TestChannelsOfUserAreLimited(t *testing.T) {
	t.Parallel()
	a := newAdmission(Settings{}, time.Now)
	for range maxChannelsPerUser {
		if !a.enterChannel("ann") {
			t.Fatal("a channel within the limit was refused")
		}
	}
	if a.enterChannel("ann") {
		t.Error("a channel beyond the limit was admitted")
	}
	if !a.enterChannel("bob") {
		t.Error("another user's channel was refused")
	}
	a.leaveChannel("ann")
	if !a.enterChannel("ann") {
		t.Error("a channel was refused after another one had ended")
	}
}

func TestChannelsOfRefusedConnectionAreLimited(t *testing.T) {
	t.Parallel()
	c := &connection{surplus: true}
	for range maxRefusedChannels {
		if !c.begin() {
			t.Fatal("a channel within the limit was refused")
		}
	}
	if c.begin() {
		t.Error("a channel beyond the limit was admitted")
	}
	c.finish()
	if !c.begin() {
		t.Error("a channel was refused after another one had ended")
	}
}
