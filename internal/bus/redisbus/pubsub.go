package redisbus

import (
	"codehub/internal/workspace"
)

// maxQueue is how much may wait to be published; what comes then is dropped.
const maxQueue = 1024

// message is one to be published; a wake has no id.
type message struct {
	owner string
	id    workspace.ID
}

func (b *Redis) wakeChannel() string { return b.cfg.WakePrefix + ":wc" }
