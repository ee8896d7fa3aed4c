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

	// labelAttempt tells a volume that this very call made from one that was there.
	labelAttempt = "codehub.attempt"
)

// Roles.
const (
	roleWorkspace = "workspace" // container
	roleSeed      = "seed"      // container, never started: proves that a home was seeded
	roleHelper    = "helper"    // container or image
	roleHome      = "home"      // volume
	roleJob       = "job"       // container: a storage job
	roleHolder    = "holder"    // container, never started, that holds a live home's volume; its image
	roleRestored  = "restored"  // volume, empty: says what was restored into a home that is not live yet
	roleSettled   = "settled"   // volume, empty: says that a home is live
	roleMount     = "mount"     // volume: a local-dir home while it is seeded
	roleMadeUp    = "made-up"   // volume that the engine made because a home was missing
	roleNetwork   = "network"
	roleDraft     = "network-draft" // network that only asks the engine for a free subnet
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

func seedName(id workspace.ID) string    { return "codehub-seed-" + string(id) }
func settledName(id workspace.ID) string { return "ws-" + string(id) + "-settled" }
func holderName(id workspace.ID) string  { return "codehub-home-" + string(id) }
func mountName(id workspace.ID) string   { return "ws-" + string(id) + "-mount" }

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
