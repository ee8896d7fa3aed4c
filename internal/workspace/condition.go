package workspace

import (
	"maps"
	"time"
)

// ConditionType names one observed fact about a workspace.
type ConditionType string

const (
	VolumeReady    ConditionType = "storage.volume_ready"  // the home's own volume exists and is complete
	ArchiveReady   ConditionType = "storage.archive_ready" // archive_key is set and its object was present at the last lookup
	ContainerReady ConditionType = "infra.container_ready" // the container runs and has answered
	Healthy        ConditionType = "policy.healthy"        // no invariant is broken
)

// Reasons of the conditions.
const (
	// storage.volume_ready
	ReasonVolumeReady   = "Ready"
	ReasonNoVolume      = "NoVolume"      // no volume by this name
	ReasonFilling       = "Filling"       // it is being provisioned or restored
	ReasonDiscarding    = "Discarding"    // left of a cancelled restore; it is removed
	ReasonRemoving      = "Removing"      // its removal has begun
	ReasonForeignVolume = "ForeignVolume" // a volume is there, but not the one this home was put in
	ReasonUnowned       = "Unowned"       // a volume is there though no home should be

	// storage.archive_ready
	ReasonArchiveReady     = "Ready"
	ReasonNoArchive        = "NoArchive"        // archive_key is not set
	ReasonArchiveMissing   = "ArchiveMissing"   // archive_key is set and its object is gone
	ReasonArchiveCorrupted = "ArchiveCorrupted" // its object is there and damaged

	// infra.container_ready
	ReasonNoContainer       = "NoContainer"
	ReasonContainerExited   = "Exited" // counts as none, and is removed before anything else
	ReasonContainerStarting = "Starting"
	ReasonContainerReady    = "Ready"
	ReasonNodeUnreachable   = "NodeUnreachable" // its node does not respond; it may still run

	// policy.healthy; the other reasons are the error reasons that they lead to
	ReasonHealthy                = "Healthy"
	ReasonContainerWithoutVolume = string(ErrContainerWithoutVolume)

	// ReasonNotObserved is the reason of every condition before the first observation.
	ReasonNotObserved = "NotObserved"
)

// Condition is one observed fact.
type Condition struct {
	Status             string    `json:"status"` // "True" or "False"
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	LastTransitionTime time.Time `json:"last_transition_time"`
}

// True reports whether the condition holds.
func (c Condition) True() bool { return c.Status == "True" }

// Conditions maps every condition type to what was last observed. A type that
// is absent has not been observed: see Get.
type Conditions map[ConditionType]Condition

// Get returns the condition, or, if it was not observed yet, its default: healthy is
// True, all others are False.
func (c Conditions) Get(t ConditionType) Condition {
	if v, ok := c[t]; ok {
		return v
	}
	if t == Healthy {
		return Condition{Status: "True", Reason: ReasonNotObserved}
	}
	return Condition{Status: "False", Reason: ReasonNotObserved}
}

// Is reports whether condition t holds.
func (c Conditions) Is(t ConditionType) bool { return c.Get(t).True() }

// HasContainer reports whether a container, in whatever state, was last seen.
func (c Conditions) HasContainer() bool {
	switch c.Get(ContainerReady).Reason {
	case ReasonNoContainer, ReasonNotObserved:
		return false
	}
	return true
}

// With returns a copy of c in which t has the given status, reason and
// message, or c itself if it has them: neither is to be changed. The
// transition time moves to now only when the status changes.
func (c Conditions) With(t ConditionType, status bool, reason, message string, now time.Time) Conditions {
	n := Condition{Status: "False", Reason: reason, Message: message, LastTransitionTime: now}
	if status {
		n.Status = "True"
	}
	if old, ok := c[t]; ok && old.Status == n.Status {
		if old.Reason == reason && old.Message == message {
			return c
		}
		n.LastTransitionTime = old.LastTransitionTime
	}
	out := make(Conditions, len(c)+1)
	maps.Copy(out, c)
	out[t] = n
	return out
}

// Equal reports whether both hold the same facts; transition times follow
// from them and are not compared.
func (c Conditions) Equal(d Conditions) bool {
	if len(c) != len(d) {
		return false
	}
	for k, v := range c {
		w, ok := d[k]
		if !ok || v.Status != w.Status || v.Reason != w.Reason || v.Message != w.Message {
			return false
		}
	}
	return true
}

// MsgNodeLost is the message of ReasonNodeUnreachable, with the node's name.
const MsgNodeLost = "The node %s does not respond and may still write. The workspace continues when it is back, or when an administrator confirms that it is dead."
