package docker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Labels on everything that is made (design §3.6).
const (
	labelInstallation = "codehub.installation"
	labelRole         = "codehub.role"
	labelWorkspace    = "codehub.workspace"
	labelClaim        = "codehub.claim"

	labelKind   = "codehub.kind"         // of a storage job
	labelVolume = "codehub.volume-claim" // of the home that a storage job is for
	labelKey    = "codehub.key"          // archive_key
	labelBucket = "codehub.bucket"       // folder of the bucket's socket that a storage job has
	labelProof  = "codehub.proof"        // id of the container that proves what a marker says
	labelAside  = "codehub.aside"        // volume that a container holds, or copies to
	labelSince  = "codehub.since"        // when a volume was set aside, RFC 3339
	labelBytes  = "codehub.bytes"        // content of a volume that was set aside
	labelFiles  = "codehub.entries"      // how many entries it has
	labelDigest = "codehub.digest"       // digest of it, as archive.Digest

	labelOwner = "codehub.owner"          // username of the workspace's owner, on a home
	labelName  = "codehub.workspace-name" // on a home

	labelMark     = "codehub.mark"     // id of a mark
	labelSerial   = "codehub.serial"   // of a mark
	labelIdentity = "codehub.identity" // of the database that made a mark
	labelAt       = "codehub.at"       // when a mark was made

	// labelAttempt tells a volume that this very call made from one that was there.
	labelAttempt = "codehub.attempt"
)

// Roles.
const (
	roleWorkspace   = "workspace"      // container
	roleSeed        = "seed"           // container, never started: proves that a home was seeded
	roleHelper      = "helper"         // container or image
	roleHome        = "home"           // volume
	roleJob         = "job"            // container: a storage job
	roleLook        = "look"           // container: takes the fingerprint of a home
	roleHolder      = "holder"         // container, never started, that holds a live home's volume; its image
	roleRestored    = "restored"       // volume, empty: says what was restored into a home that is not live yet
	roleSettled     = "settled"        // volume, empty: says that a home is live
	roleMount       = "mount"          // volume: a local-dir home while it is seeded
	roleRemover     = "remover"        // container that empties a home before Docker removes its volume
	roleRemoving    = "removing"       // volume, empty: says that the removal of a home has begun
	roleMadeUp      = "made-up"        // volume that the engine made because a home was missing
	roleAside       = "aside"          // volume that was set aside; the container that holds it
	roleAsideRecord = "aside-complete" // volume, empty: says that a volume that was set aside is complete
	roleCopy        = "copy"           // container that copies what is set aside
	roleMark        = "mark"           // volume, empty: says which database leads here
	roleScratch     = "scratch"        // volume, anonymous: where an archive job tries a restore
	roleNetwork     = "network"
	roleDraft       = "network-draft" // network that only asks the engine for a free subnet
)

// names are the names of what an installation has once. They derive from its
// id, so that two installations share nothing.
type names struct {
	network string
	bridge  string // an interface: 15 bytes at most
	table   string
	helper  string // repository of the helper's image, and prefix of its containers
	holder  string // image of the containers that hold volumes
}

func namesOf(installation string) names {
	// Hashed, since the front of a UUIDv7 is the time: two installations made
	// within a minute would share it.
	sum := sha256.Sum256([]byte(installation))
	short := hex.EncodeToString(sum[:4])
	return names{
		network: "codehub-" + short,
		bridge:  "br-ch" + short,
		table:   "codehub-" + short,
		helper:  "codehub-helper-" + short,
		holder:  "codehub-holder-" + short + ":1",
	}
}

func seedName(id workspace.ID) string   { return "codehub-seed-" + string(id) }
func holderName(id workspace.ID) string { return "codehub-home-" + string(id) }
func copyName(id workspace.ID) string   { return "codehub-copy-" + string(id) }
func mountName(id workspace.ID) string  { return "ws-" + string(id) + "-mount" }

// settledName is the name of the record that a home is live. It carries the
// claim: a power cut may bring a removed volume back without its labels, and
// that must not take the name of a later home's record.
func settledName(id workspace.ID, claim string) string {
	sum := sha256.Sum256([]byte(claim))
	return earlierSettledName(id) + "-" + hex.EncodeToString(sum[:8])
}

// earlierSettledName is the name that such a record had before it carried the
// claim.
func earlierSettledName(id workspace.ID) string { return "ws-" + string(id) + "-settled" }

func removerName(id workspace.ID) string { return "codehub-remove-" + string(id) }

// removingName is the name of the record that the removal of a home has begun:
// one for each remover, so that a call that comes too late can take back its own.
func removingName(id workspace.ID, claim, remover string) string {
	sum := sha256.Sum256([]byte(claim + "\n" + remover))
	return "ws-" + string(id) + "-removing-" + hex.EncodeToString(sum[:8])
}

// lookName is the container that takes the fingerprint of a home.
func lookName(id workspace.ID) string { return "codehub-look-" + string(id) }
func (n names) mark(id string) string { return n.network + "-mark-" + id }

func jobName(kind runtime.JobKind, id workspace.ID) string {
	return "codehub-" + string(kind) + "-" + string(id)
}

// restoredName is the name of a marker: one for each thing that it can say, so
// that to remove it is never to remove what somebody else has said since.
func restoredName(id workspace.ID, claim, key, proof string) string {
	sum := sha256.Sum256([]byte(claim + "\n" + key + "\n" + proof))
	return "ws-" + string(id) + "-restored-" + hex.EncodeToString(sum[:8])
}

// labels returns the labels of something with this role, and of its workspace
// if it belongs to one.
func (r *Runtime) labels(role string, id workspace.ID, claim string) map[string]string {
	l := map[string]string{}
	maps.Copy(l, r.cfg.ExtraLabels)
	l[labelInstallation] = r.cfg.Installation
	l[labelRole] = role
	if id != "" {
		l[labelWorkspace] = string(id)
		l[labelClaim] = claim
	}
	return l
}

// owns reports whether the labels are this installation's, with this role.
func (r *Runtime) owns(labels map[string]string, role string) bool {
	return labels[labelInstallation] == r.cfg.Installation && labels[labelRole] == role
}

// filter selects what this installation made; with a role, only that.
func (r *Runtime) filter(role string) client.Filters {
	f := client.Filters{}.Add("label", labelInstallation+"="+r.cfg.Installation)
	if role != "" {
		f = f.Add("label", labelRole+"="+role)
	}
	return f
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
